"""The stream broker: one suite for every backend, and commands compared with those of Redis."""

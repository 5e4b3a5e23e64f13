"""Streams with the verbs of Redis, on the log."""

"""Queues: push, pop, consume, replay."""

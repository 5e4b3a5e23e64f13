"""Streams with the verbs of Redis: in memory, on a Redis server, or on Queen's own log."""

"""Expressions of a definition: where Spark casts, and on which messages they fail."""

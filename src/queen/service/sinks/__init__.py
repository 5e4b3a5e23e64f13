"""Sinks: what many tasks of one computation write, published once."""

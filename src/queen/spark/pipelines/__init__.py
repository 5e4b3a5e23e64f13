"""Pipelines: definitions and functions that Spark runs, as a stream or over history."""

"""Pipelines: definitions that Spark runs, as a stream or over history."""

"""Segments and payloads as Arrow columns."""

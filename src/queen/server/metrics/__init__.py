"""Metrics for Prometheus: what a scrape reads, and the series that are made of it."""

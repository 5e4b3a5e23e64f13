"""The dashboard: pages for people, which know the broker by its HTTP API alone."""

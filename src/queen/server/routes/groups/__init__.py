"""Routes of consumer groups."""

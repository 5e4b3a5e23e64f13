"""`queen serve`: from its options to running processes."""

"""What operators ask for and set, on the wire."""

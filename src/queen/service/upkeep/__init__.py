"""Work that goes on by itself, and what keeps it going."""

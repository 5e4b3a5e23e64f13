"""Numbers on the wire: what is there, what happens, and what needs somebody."""

"""Acks: what consumers have done with what they were leased, and what becomes of that."""

"""Merged segments: how small ones become one row, and how what they were is read."""

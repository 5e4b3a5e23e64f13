"""Frames that are more than one stored segment: leased, and joined."""

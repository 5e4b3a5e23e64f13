"""Pacing: when a group is given messages, beside that there are any."""

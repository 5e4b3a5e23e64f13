"""Columns of a segment: a rare one, and whether all of them are what they claim to be."""

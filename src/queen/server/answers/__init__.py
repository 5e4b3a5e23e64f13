"""Answers that more than one route gives: how what was done looks on the wire."""

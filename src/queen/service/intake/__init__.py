"""Intake: what requests ask, checked, and turned into what the log and its consumers do."""

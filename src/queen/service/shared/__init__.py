"""Shared groups: many consumers hold different messages of one partition at once."""

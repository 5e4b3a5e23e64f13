"""Rates of a running broker, measured from outside; see README.md in this folder."""

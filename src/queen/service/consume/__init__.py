"""Consuming: who gets which messages, until when, and what became of them."""

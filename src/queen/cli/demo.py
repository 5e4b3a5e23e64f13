"""`queen demo`: placeholder until the server answers."""

from __future__ import annotations


def demo() -> None:
    """Show the broker at work."""
    raise SystemExit(1)

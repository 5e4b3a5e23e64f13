"""Rows, as services hand them to those who render them."""

from __future__ import annotations

from queen.storage.database import Record

__all__ = ["Record"]

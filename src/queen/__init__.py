"""Queen: a message broker and stream engine on PostgreSQL and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.client import Message, Pushed, Queen, Received, Window
from queen.errors import QueenError

if TYPE_CHECKING:
    from queen.client import SyncQueen, SyncReceived, SyncWindow

__version__ = "0.1.0"

__all__ = [
    "Message",
    "Pushed",
    "Queen",
    "QueenError",
    "Received",
    "SyncQueen",
    "SyncReceived",
    "SyncWindow",
    "Window",
    "__version__",
]

if not TYPE_CHECKING:
    # Hidden from type checkers: to them every name would exist.
    def __getattr__(name: str) -> Any:
        """Load the synchronous client when it is first asked for."""
        from queen import client

        if name in ("SyncQueen", "SyncReceived", "SyncWindow"):
            return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

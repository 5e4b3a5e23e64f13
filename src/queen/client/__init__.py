"""The Python client: a fluent interface to everything a broker does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.client.queen import Queen
from queen.client.queues.messages import Message, Pushed, Received
from queen.client.streams.window import Window

if TYPE_CHECKING:
    from queen.client.streams.sync import SyncWindow
    from queen.client.sync import SyncQueen, SyncReceived

__all__ = [
    "Message",
    "Pushed",
    "Queen",
    "Received",
    "SyncQueen",
    "SyncReceived",
    "SyncWindow",
    "Window",
]

if not TYPE_CHECKING:
    # Hidden from type checkers: to them every name would exist.
    def __getattr__(name: str) -> Any:
        """Load the synchronous client when first asked for: most programs use one of the two."""
        if name in ("SyncQueen", "SyncReceived"):
            from queen.client import sync

            return getattr(sync, name)
        if name == "SyncWindow":
            from queen.client.streams.sync import SyncWindow

            return SyncWindow
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

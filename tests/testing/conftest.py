"""The fixtures of the plugin, whether or not its entry point is installed."""

from __future__ import annotations

import pytest

from queen.testing.plugin import (
    queen_client,
    queen_clock,
    queen_server,
    queue_name,
    sync_queen,
    sync_queen_clock,
)

queen = pytest.fixture(queen_client, name="queen")

__all__ = [
    "queen",
    "queen_clock",
    "queen_server",
    "queue_name",
    "sync_queen",
    "sync_queen_clock",
]

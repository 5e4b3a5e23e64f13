"""The commands, by what they do; importing a module makes its commands known."""

from __future__ import annotations

from queen.streambroker.engine.commands import (
    acknowledging,
    adding,
    claiming,
    dead_letters,
    deleting,
    delivering,
    grouping,
    inspecting,
    keys,
    pending,
    reading,
)

__all__ = [
    "acknowledging",
    "adding",
    "claiming",
    "dead_letters",
    "deleting",
    "delivering",
    "grouping",
    "inspecting",
    "keys",
    "pending",
    "reading",
]

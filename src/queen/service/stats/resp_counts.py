"""What clients of the RESP port do with this server, counted in memory."""

from __future__ import annotations


class RespCounts:
    __slots__ = (
        "accepted",
        "bytes_read",
        "bytes_written",
        "commands",
        "connections",
        "evicted",
        "failures",
        "refused",
        "waiting",
    )

    def __init__(self) -> None:
        # Now.
        self.connections = self.waiting = 0
        # Since the start: taken, turned away, and closed for what they hold.
        self.accepted = self.refused = self.evicted = 0
        # Commands, and those that were answered with an error.
        self.commands = self.failures = 0
        self.bytes_read = self.bytes_written = 0

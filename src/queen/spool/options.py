"""How a spool behaves: when it syncs, when it begins a new file, how large it may grow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SyncPolicy = Literal["always", "interval", "never"]


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    # What an append that does not say otherwise waits for. An append can always ask to be
    # durable before it returns, whatever stands here.
    sync: SyncPolicy = "interval"
    # With `interval`: for how long at most a record is on this machine but not on its disk.
    sync_interval_ms: int = 100
    max_file_bytes: int = 64 * 1024 * 1024
    max_file_records: int = 1_000_000
    max_file_age_ms: int = 60_000
    # Of the whole folder, with the spools of other processes in it.
    max_bytes: int = 4 * 1024 * 1024 * 1024
    # Left to others on the same disk: a database that shares it must be able to come back.
    min_free_bytes: int = 256 * 1024 * 1024
    # What may wait in memory to be written by the thread that syncs.
    max_pending_bytes: int = 64 * 1024 * 1024

"""Vitals: what a server process uses, sampled once a second.

CPU, memory and connections are asked of the system; the lag of the event loop is how much
later than asked for a timer rings, and so how long a request may have to wait for its turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

import psutil  # type: ignore[import-untyped]

from queen.storage.database import Database, Transaction

_SAMPLE_INTERVAL_S = 1.0
_TICKS = 10

# The order of the arrays in `queen.worker_samples`.
GAUGES = (
    "cpu_user_pct",
    "cpu_system_pct",
    "rss_bytes",
    "virtual_bytes",
    "pool_size",
    "pool_idle",
    "pool_active",
    "pool_free",
    "loop_lag_ms",
    "parked_polls",
    "waiting_pushes",
)


class _Minute:
    """The samples of one minute, added up."""

    def __init__(self, base: tuple[int, int]) -> None:
        # Where requests and database errors stood when it began.
        self.base = base
        self.samples = 0
        self.sums = [0.0] * len(GAUGES)
        self.lows = [float("inf")] * len(GAUGES)
        self.highs = [0.0] * len(GAUGES)
        self.lasts = [0.0] * len(GAUGES)

    def add(self, sample: dict[str, float]) -> None:
        self.samples += 1
        for at, value in enumerate(sample.values()):
            self.sums[at] += value
            self.lows[at] = min(self.lows[at], value)
            self.highs[at] = max(self.highs[at], value)
            self.lasts[at] = value


class Vitals:
    def __init__(
        self,
        database: Database,
        requests: Callable[[], int],
        parked: Callable[[], int],
        waiting: Callable[[], int],
    ) -> None:
        self._database = database
        self._requests = requests
        self._parked = parked
        self._waiting = waiting
        self._process = psutil.Process()
        self._cpu = self._process.cpu_times()
        self._sampled = time.monotonic()
        self.loop_lag_ms = 0.0
        # The worst lag since the last sample.
        self._worst_lag_ms = 0.0
        self._minute = _Minute((0, 0))
        self._bucket: datetime | None = None
        # Where the counters stood at the last report.
        self._reported = (0, 0)

    async def run(self) -> None:
        while True:
            for _ in range(_TICKS):
                due = time.monotonic() + _SAMPLE_INTERVAL_S / _TICKS
                await asyncio.sleep(_SAMPLE_INTERVAL_S / _TICKS)
                self.loop_lag_ms = max(0.0, (time.monotonic() - due) * 1000)
                self._worst_lag_ms = max(self._worst_lag_ms, self.loop_lag_ms)
            self._minute.add(self.sample())

    def sample(self) -> dict[str, float]:
        """Return every gauge as it is now; CPU is the mean since the last sample."""
        now, cpu = time.monotonic(), self._process.cpu_times()
        elapsed_s = max(now - self._sampled, 0.001)
        user_s, system_s = cpu.user - self._cpu.user, cpu.system - self._cpu.system
        self._sampled, self._cpu = now, cpu
        memory, pool = self._process.memory_info(), self._database
        values = (
            100 * user_s / elapsed_s,
            100 * system_s / elapsed_s,
            memory.rss,
            memory.vms,
            pool.pool_size,
            pool.pool_idle,
            pool.pool_size - pool.pool_idle,
            pool.pool_limit - pool.pool_size + pool.pool_idle,
            self._worst_lag_ms,
            self._parked(),
            self._waiting(),
        )
        self._worst_lag_ms = 0.0
        return dict(zip(GAUGES, map(float, values), strict=True))

    @property
    def lag_s(self) -> float:
        return self.loop_lag_ms / 1000

    def memory(self) -> tuple[int, int]:
        """Return resident and virtual bytes."""
        info = self._process.memory_info()
        return info.rss, info.vms

    def cpu_seconds(self) -> tuple[float, float]:
        """Return user and system time since the process started."""
        times = self._process.cpu_times()
        return times.user, times.system

    async def report(self, transaction: Transaction, server_id: int, bucket: datetime) -> None:
        """Write this process's numbers of the minute, again."""
        counted = (self._requests(), self._database.failures)
        if self._bucket not in (None, bucket):
            self._minute = _Minute(self._reported)
        self._bucket, minute = bucket, self._minute
        if minute.samples:
            requests, errors = (now - base for now, base in zip(counted, minute.base, strict=True))
            await transaction.execute(
                "report_vitals",
                bucket,
                server_id,
                minute.samples,
                requests,
                errors,
                minute.sums,
                minute.lows,
                minute.highs,
                minute.lasts,
            )
        self._reported = counted

"""The spool alone: what an append costs, how fast it is read, and how fast it recovers.

.venv/bin/python -m benchmarks.spool
.venv/bin/python -m benchmarks.spool --records 200000 --folder /path/on/the/disk
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from queen.spool import KIND_JSON, AsyncSpool, Spool, SpoolOptions, SpoolRoot
from queen.spool.options import SyncPolicy

_SIZES = (100, 1000, 10_000)
_POLICIES: tuple[SyncPolicy, ...] = ("never", "interval", "always")
_MEASURED_S = 1.0


def _open(root: Path, sync: SyncPolicy = "interval") -> Spool:
    return Spool(SpoolRoot(root).claim(), SpoolOptions(sync=sync))


@contextmanager
def _fresh(folder: Path) -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="spool-", dir=folder))
    try:
        yield root
    finally:
        shutil.rmtree(root)


def _row(what: str, *figures: str) -> None:
    print(f"{what:<44}" + "".join(f"{figure:>16}" for figure in figures))


def measure_appends(folder: Path) -> None:
    """One caller, one record at a time, and a hundred at a time."""
    _row("appends of one caller", "records", "p50 µs", "p99 µs", "records/s")
    for sync in _POLICIES:
        for size in _SIZES:
            for count in (1, 100):
                with _fresh(folder) as root:
                    spool = _open(root, sync)
                    took = _append_for(spool, [bytes(size)] * count)
                    spool.close()
                rate = count * len(took) / sum(took)
                p99 = statistics.quantiles(took, n=100)[98]
                p50 = statistics.median(took)
                figures = f"{p50 * 1e6:.1f}", f"{p99 * 1e6:.1f}", f"{rate:,.0f}"
                _row(f"{sync}, {size} bytes, {count} a call", str(count * len(took)), *figures)


def _append_for(spool: Spool, bodies: list[bytes]) -> list[float]:
    spool.append(bodies, KIND_JSON)
    took: list[float] = []
    started = last = time.perf_counter()
    while last - started < _MEASURED_S and len(took) * len(bodies) * len(bodies[0]) < 400_000_000:
        spool.append(bodies, KIND_JSON)
        now = time.perf_counter()
        took.append(now - last)
        last = now
    return took


async def measure_loop(folder: Path) -> None:
    """Many callers on an event loop, as in a broker."""
    _row("appends on an event loop, 200 bytes", "callers", "p50 µs", "p99 µs", "records/s")
    for durable, callers in ((False, 1), (True, 1), (True, 16), (True, 64), (True, 256)):
        with _fresh(folder) as root:
            spool = AsyncSpool(_open(root))
            await spool.append([b"warm"], KIND_JSON, durable=True)
            took: list[float] = []
            started = time.perf_counter()

            async def call(
                spool: AsyncSpool = spool,
                durable: bool = durable,
                took: list[float] = took,
                until: float = started + _MEASURED_S,
            ) -> None:
                body = bytes(200)
                while (begun := time.perf_counter()) < until:
                    await spool.append([body], KIND_JSON, durable=durable)
                    took.append(time.perf_counter() - begun)

            await asyncio.gather(*(call() for _ in range(callers)))
            rate = len(took) / (time.perf_counter() - started)
            await spool.close()
        p50, p99 = statistics.median(took), statistics.quantiles(took, n=100)[98]
        kind = "durable" if durable else "not durable (QoS 0)"
        _row(kind, str(callers), f"{p50 * 1e6:.1f}", f"{p99 * 1e6:.1f}", f"{rate:,.0f}")


def measure_recovery(folder: Path, records: int) -> None:
    """A process has left many records: how soon they are counted, and how fast they are read."""
    with _fresh(folder) as root:
        spool = _open(root, "never")
        body = b'{"event":"' + b"x" * 180 + b'"}'
        for _ in range(records // 1000):
            spool.append([body] * 1000, KIND_JSON)
        spool.close()
        begun = time.perf_counter()
        spool = _open(root)
        opened_s = time.perf_counter() - begun
        spool.append([body], KIND_JSON, durable=True)
        first_append_s = time.perf_counter() - begun
        spool.recovery.wait()
        scanned_s = time.perf_counter() - begun
        begun, count, after = time.perf_counter(), 0, 0
        while batch := spool.read(after, 1000):
            count += len(batch)
            after = batch[-1].seq
        read_s = time.perf_counter() - begun
        spool.release(after)
        spool.close()
    _row(f"recovery of {records:,} records", "ms", "records/s")
    _row("open", f"{opened_s * 1e3:.1f}")
    _row("first durable append done", f"{first_append_s * 1e3:.1f}")
    _row(
        "scan in the background, at half speed",
        f"{scanned_s * 1e3:.0f}",
        f"{records / scanned_s:,.0f}",
    )
    _row("read all, 1000 at a time", f"{read_s * 1e3:.0f}", f"{count / read_s:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=Path(".bench"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(exist_ok=True)
    measure_appends(arguments.folder)
    print()
    asyncio.run(measure_loop(arguments.folder))
    print()
    measure_recovery(arguments.folder, arguments.records)


if __name__ == "__main__":
    main()

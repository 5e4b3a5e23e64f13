"""Brokers with a spool, in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg

from queen.core.cipher import KeyRing
from queen.service.broker import Broker, Limits
from queen.service.log.append import Append
from queen.service.spooling.basins import SpoolSettings
from queen.service.spooling.entrance import Buffering
from queen.spool.options import SpoolOptions
from tests.waiting import until_met

LIMITS = Limits(dedup_hashes=100_000, connections=4)
# Messages that wait until somebody looks at them, or for an hour.
PATIENT = Buffering(within_ms=60_000, most=1_000_000)


async def start_broker(
    dsn: str, folder: Path, keys: KeyRing | None = None, options: SpoolOptions | None = None
) -> Broker:
    settings = SpoolSettings(folder, "test", options or SpoolOptions())
    return await Broker.start(dsn, LIMITS, keys, spool=settings)


@asynccontextmanager
async def broker_with_spool(dsn: str, folder: Path, **options: Any) -> AsyncIterator[Broker]:
    broker = await start_broker(dsn, folder, **options)
    try:
        yield broker
    finally:
        await broker.stop()


async def end_suddenly(broker: Broker) -> None:
    """End a broker as a kill would: nothing is drained, nothing is said to the database."""
    assert broker.basins is not None
    await broker.supervisor.stop()
    broker.watchdog.stop()
    for basin in broker.basins:
        basin.spool.spool.recovery.stop()
        basin.spool.spool.writer.close()
        basin.spool.spool._held.let_go()
    await broker.database.close()


def append_of(
    queue: str, *ids: str, partition: str = "p", payloads: Sequence[bytes] | None = None
) -> Append:
    bodies = payloads or [f'"{each}"'.encode() for each in ids]
    return Append(queue, partition, [each.encode() for each in ids], bodies, 100 * len(ids))


async def stored_ids(
    connection: asyncpg.Connection, queue: str, partition: str = "p", key: KeyRing | None = None
) -> list[str]:
    """Return the transaction ids of a partition in order, read past every cache."""
    from queen.service.log.segment_encryption import SegmentEncryption

    rows = await connection.fetch(
        "select s.* from queen.segments s join queen.partitions p on p.id = s.partition_id"
        " join queen.queues q on q.id = p.queue_id where q.name = $1 and p.name = $2"
        " order by s.base_offset",
        queue,
        partition,
    )
    encryption = SegmentEncryption(key or KeyRing())
    return [each for row in rows for each in encryption.decode_segment(row).transaction_ids()]


async def drained(broker: Broker) -> None:
    """Wait until nothing waits in the spool."""
    assert broker.drain is not None

    def is_drained() -> bool:
        assert broker.drain is not None
        broker.drain.expect(0, 0.0, 1)
        return broker.drain.is_clear

    await until_met(is_drained)


def spools_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith(".")]


def files_in(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.rglob("*.spool")]


def damage_payload(folder: Path, payload: bytes) -> None:
    """Flip a bit of a record, and let nobody keep the damaged bytes elsewhere."""
    (file,) = folder.glob("*.spool")
    data = bytearray(file.read_bytes())
    data[data.index(payload)] ^= 1
    file.write_bytes(data)
    (folder / "aside").write_text("no folder can be made here")

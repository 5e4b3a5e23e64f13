"""What a message takes: on the database's disk, in its journal, and in the server's memory.

    python -m benchmarks.sizing [--messages 20000]

Messages of several sizes are pushed, one and a hundred per request; then tables with their
indexes and the journal (WAL) are measured. Payloads are JSON of words and numbers, as orders
are; random bytes would not compress at all, and one repeated word too well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from pathlib import Path

from benchmarks.broker import Broker
from benchmarks.postgres import stored_bytes
from queen import Queen

_SIZES = (100, 1_000, 10_000)
_PER_REQUEST = (1, 100)
_PARTITIONS = 100
_WORDS = ("parcel", "delayed", "customs", "gate", "north", "invoice", "paid", "returned", "street")
# So many messages of each size, that no size takes longer than the others.
_LARGEST_BYTES = 20_000_000


def payload(size: int, chance: random.Random) -> dict[str, object]:
    """Return an object of about so many bytes as JSON."""
    made: dict[str, object] = {"id": chance.getrandbits(60), "lines": []}
    lines: list[object] = []
    made["lines"] = lines
    length = 40
    while length < size:
        line = f"{chance.choice(_WORDS)} {chance.randrange(100_000)}"
        lines.append(line)
        length += len(line) + 3
    return made


async def push(queen: Queen, queue: str, size: int, each: int, count: int) -> int:
    """Push so many messages; return the bytes of their payloads."""
    chance = random.Random(size)
    pushed = 0

    async def one(number: int) -> None:
        nonlocal pushed
        many = [payload(size, chance) for _ in range(each)]
        pushed += sum(len(json.dumps(data)) for data in many)
        await queen.queue(queue).partition(f"p{number % _PARTITIONS}").push(many)

    requests = range(count // each)
    for start in range(0, len(requests), 64):
        await asyncio.gather(*(one(number) for number in requests[start : start + 64]))
    return pushed


async def measure(broker: Broker, size: int, each: int, count: int) -> str:
    connection = await broker.postgres.connect("postgres")
    try:
        before = await stored_bytes(broker.postgres, without="")
        place = await connection.fetchval("select pg_current_wal_lsn()")
        async with Queen(f"http://127.0.0.1:{broker.port}") as queen:
            pushed = await push(queen, f"q-{size}-{each}", size, each, count)
        question = "select pg_wal_lsn_diff(pg_current_wal_lsn(), $1)::bigint"
        journal = await connection.fetchval(question, place)
        stored = await stored_bytes(broker.postgres, without="") - before
    finally:
        await connection.close()
    row = (pushed // count, each, stored // count, journal // count)
    return "| " + " | ".join(f"{number:,}" for number in row) + " |"


async def main(broker: Broker, messages: int) -> None:
    with broker:
        usage = broker.usage()
        usage.begin()
        usage.sample()
        print(f"memory of an idle server: {usage.rss_bytes / 1e6:.0f} MB")
        print("| payload, bytes | per request | stored, bytes | journal, bytes |")
        print("| --- | --- | --- | --- |")
        for size in _SIZES:
            for each in _PER_REQUEST:
                count = min(messages, _LARGEST_BYTES // size)
                print(await measure(broker, size, each, count))
        usage.sample()
        print(f"memory afterwards: {usage.rss_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    asyncio.run(main(Broker(Path(".bench").resolve()), parser.parse_args().messages))

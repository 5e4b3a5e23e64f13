"""Queues as producers that send little leave them: many small segments, spread over time.

A history is written to the database as the broker would have stored it, so that its times can be
anything. What it should tell is known: every message with its place and its time.
"""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import asyncpg

from queen.core.frame import compress, encode_body, segment_of
from queen.core.hashing import hash_ids
from queen.core.visibility import ONLY_GROUP
from tests.frame_contents import Told

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# What is written now is this much younger than the newest message of a history.
REST = timedelta(minutes=20)
_MICROSECOND = timedelta(microseconds=1)
_WORDS = ("parcel", "ü", "日本語", 'a "quoted" word', "back\\slash", "line\nbreak", "\t", "🎁", "")
# How far a message may be from the one before it, in µs, and how often that is so.
_GAPS_US = {
    0: 12,
    1: 12,
    2: 4,
    900: 10,
    40_000: 20,
    1_000_000: 20,
    7_000_000: 12,
    60_000_000: 3,
    240_000_000: 1,
}
_COLUMNS = ["partition_id", "base_offset", "end_offset", "created_at", "queue_id", "codec"]


def microseconds(at: datetime) -> int:
    """Return an instant as frames have it."""
    return (at - EPOCH) // _MICROSECOND


def instant_at(at_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=at_us)


class Stored(NamedTuple):
    """Messages of a partition that were stored together: a stretch, once it is merged."""

    partition: str
    partition_id: int
    base_offset: int
    at: datetime
    ids: list[str]
    payloads: list[bytes]
    extras: dict[str, list[Any]]
    has_hashes: bool = True

    def told(self) -> list[Told]:
        """Return what has to be told of each message."""
        at_us = microseconds(self.at)
        return [
            Told(
                self.partition,
                self.partition_id,
                self.base_offset + number,
                at_us,
                self.ids[number],
                payload,
                {name: column[number] for name, column in self.extras.items() if column[number]},
            )
            for number, payload in enumerate(self.payloads)
        ]


@dataclass
class History:
    """What was written to a queue, in the order of its partitions and offsets."""

    queue: str
    stored: list[Stored] = field(default_factory=list)

    @property
    def partitions(self) -> dict[str, int]:
        """The ids of partitions by their names."""
        return {one.partition: one.partition_id for one in self.stored}

    def messages(self) -> list[Told]:
        """Return all messages in the order of time, partition and offset."""
        return [told for one in sorted(self.stored, key=_place) for told in one.told()]

    def of(self, partition: str) -> list[Told]:
        """Return the messages of a partition in their order."""
        return [told for told in self.messages() if told.partition == partition]

    def shown(self, group: str = "") -> dict[str, list[Told]]:
        """Return what a group is shown, by partition."""
        return {
            name: [told for told in self.of(name) if told.extras.get(ONLY_GROUP, group) == group]
            for name in self.partitions
        }

    def boundaries(self, rng: random.Random, count: int) -> list[datetime]:
        """Return instants at which something may go wrong: of messages, and just beside them."""
        times = sorted({one.at for one in self.stored})
        some = {times[0], times[-1], *rng.sample(times, min(count, len(times)))}
        # Where two are a microsecond apart, and where nothing was written for long.
        by_gap = sorted(pairwise(times), key=lambda pair: pair[1] - pair[0])
        some |= {*by_gap[0], *by_gap[-1]}
        return sorted({at + step * _MICROSECOND for at in some for step in (-1, 0, 1)})


def _place(one: Stored) -> tuple[datetime, int, int]:
    return one.at, one.partition_id, one.base_offset


def make_payload(rng: random.Random, number: int) -> bytes:
    words = [rng.choice(_WORDS) for _ in range(rng.randrange(4))]
    value: Any = rng.choice([{"n": number, "words": words}, [number, *words], number, None, "ü"])
    return json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()


def make_id(rng: random.Random, number: int) -> str:
    """Return an id as the broker gives it, or one that a producer has chosen."""
    if rng.random() < 0.5:
        return str(uuid.UUID(int=rng.getrandbits(128)))
    return f"{rng.choice(['order', 'заказ', 'a/b c', 'x' * 60])}-{number}"


def _extras(rng: random.Random, count: int, group: str) -> dict[str, list[Any]]:
    """Return rare columns, mostly none."""
    extras: dict[str, list[Any]] = {}
    if rng.random() < 0.1:
        extras["traceId"] = [str(uuid.UUID(int=rng.getrandbits(128))) for _ in range(count)]
    if rng.random() < 0.1:
        extras["headers"] = [
            json.dumps({"source": rng.choice(_WORDS[:4])}) if rng.random() < 0.7 else None
            for _ in range(count)
        ]
    if rng.random() < 0.05:
        extras["producerSub"] = [f"subject {number}" for number in range(count)]
    if rng.random() < 0.05:
        extras[ONLY_GROUP] = [rng.choice([None, group]) for _ in range(count)]
    extras = {name: column for name, column in extras.items() if any(column)}
    return extras


class Shape(NamedTuple):
    """What a history is like."""

    partitions: int = 5
    stretches: int = 160
    # Of all, so many in a hundred.
    lists: int = 18
    large: int = 3
    # Whether some have rare columns.
    rare: bool = True
    # The group of which some messages are the only one's.
    group: str = "only"
    # How many have hashes: those that were pushed while the queue refused duplicates.
    hashed: float = 1.0
    gaps_us: Sequence[int] | None = None
    # How long ago the last message was written.
    rest: timedelta = REST


async def write_history(
    connection: asyncpg.Connection, queue: str, rng: random.Random, shape: Shape | None = None
) -> History:
    """Write a history to a queue, which is made if it does not exist."""
    shape = shape or Shape()
    queue_id = await connection.fetchval(
        "insert into queen.queues (name) values ($1)"
        " on conflict (name) do update set name = excluded.name returning id",
        queue,
    )
    names = [f"p{number}" if number % 3 else f"ü {number}" for number in range(shape.partitions)]
    rows = await connection.fetch(
        "insert into queen.partitions (queue_id, name)"
        " select $1, w.name from unnest($2::text[]) w (name) returning id, name",
        queue_id,
        names,
    )
    ids = {row["name"]: row["id"] for row in rows}
    history = History(queue, _make(rng, shape, ids))
    await connection.copy_records_to_table(
        "segments",
        schema_name="queen",
        columns=[*_COLUMNS, "hashes", "body"],
        records=[_row(one, queue_id) for one in history.stored],
    )
    await connection.execute(
        """
        update queen.partitions p set head = s.head, head_at = s.head_at, created_at = s.first_at
        from (select partition_id, max(end_offset) as head, max(created_at) as head_at,
                     min(created_at) as first_at
              from queen.segments where queue_id = $1 group by 1) s
        where s.partition_id = p.id""",
        queue_id,
    )
    return history


def _make(rng: random.Random, shape: Shape, ids: dict[str, int]) -> list[Stored]:
    gaps = list(shape.gaps_us) if shape.gaps_us else list(_GAPS_US)
    weights = [1] * len(gaps) if shape.gaps_us else list(_GAPS_US.values())
    steps = rng.choices(gaps, weights, k=shape.stretches)
    at = datetime.now(UTC) - shape.rest - timedelta(microseconds=sum(steps))
    heads = dict.fromkeys(ids, 0)
    stored: list[Stored] = []
    busy = next(iter(ids))
    for number, step in enumerate(steps):
        at += timedelta(microseconds=step)
        # One partition gets more than the others, so that neighbours are next to each other.
        name = busy if rng.random() < 0.3 else rng.choice(list(ids))
        kind = rng.randrange(100)
        count = 50 if kind < shape.large else rng.randint(2, 5) if kind < shape.lists else 1
        payloads = [make_payload(rng, 100 * number + n) for n in range(count)]
        if shape.large <= kind < shape.large * 2:
            payloads[0] = json.dumps(rng.randbytes(10_000).hex()).encode()
        stored.append(
            Stored(
                name,
                ids[name],
                heads[name],
                at,
                [make_id(rng, 100 * number + n) for n in range(count)],
                payloads,
                _extras(rng, count, shape.group) if shape.rare else {},
                rng.random() < shape.hashed,
            )
        )
        heads[name] += count
    return sorted(stored, key=lambda one: (one.partition_id, one.base_offset))


def _row(one: Stored, queue_id: int) -> tuple[object, ...]:
    ids = [name.encode() for name in one.ids]
    codec, body = compress(encode_body(segment_of(ids, one.payloads, one.extras or None)))
    hashes = hash_ids(ids).tobytes() if one.has_hashes else None
    end = one.base_offset + len(ids)
    return one.partition_id, one.base_offset, end, one.at, queue_id, codec, hashes, body


def text_of(at: datetime | int) -> str:
    """Return an instant as clients write it."""
    if isinstance(at, int):
        at = instant_at(at)
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

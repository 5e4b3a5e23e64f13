"""A transaction id that is stored is refused, however it lies in the database."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from queen.core.options import QueueOptions
from queen.service.broker import Broker
from queen.service.log.append import Append
from tests.api import Api
from tests.merged.conftest import Merge, Write, start_broker
from tests.merged.history import History, microseconds
from tests.merged.test_standing import quiet_instants

Answer = tuple[int, bool]
_PARTITIONS = ("a", "b", "ü")


async def _push(broker: Broker, queue: str, partition: str, ids: Sequence[str]) -> list[Answer]:
    """Push messages; return offset and whether it was there before, for each."""
    encoded = [name.encode() for name in ids]
    append = Append(queue, partition, encoded, [b"1"] * len(ids), 100)
    await broker.pusher.push([append])
    return [(append.offset_of(at), append.is_duplicate(at)) for at in range(len(ids))]


async def _push_some(
    broker: Broker, queue: str, rng: random.Random, pushes: int
) -> dict[tuple[str, str], int]:
    """Push a little at a time; return the offsets of ids by partition."""
    offsets: dict[tuple[str, str], int] = {}
    for _ in range(pushes):
        partition = rng.choice(_PARTITIONS)
        ids = [uuid.UUID(int=rng.getrandbits(128)).hex for _ in range(rng.choice([1, 1, 1, 3]))]
        for name, (offset, repeated) in zip(
            ids, await _push(broker, queue, partition, ids), strict=True
        ):
            assert not repeated
            offsets[partition, name] = offset
    return offsets


async def _configure(broker: Broker, queue: str, policy: str) -> None:
    await broker.queues.configure(queue, "", "", QueueOptions(dedup=policy))  # type: ignore[arg-type]


async def _check(
    broker: Broker, queue: str, rng: random.Random, offsets: dict[tuple[str, str], int], what: str
) -> None:
    """Push every id again, in another order and in other company."""
    for partition in _PARTITIONS:
        mine = {name: at for (held, name), at in offsets.items() if held == partition}
        names = rng.sample(sorted(mine), len(mine))
        while names:
            some = [names.pop() for _ in range(min(rng.choice([1, 4, 30]), len(names)))]
            answers = await _push(broker, queue, partition, some)
            wanted = [(mine[name], True) for name in some]
            assert answers == wanted, f"{what}: {partition}: {answers} and not {wanted}"


@pytest.mark.parametrize("policy", ["window", "forever"])
async def test_what_is_merged_is_refused_by_every_server(
    broker: Broker,
    other_broker: Broker,
    merging_dsn: str,
    queue: str,
    merge: Merge,
    rng: random.Random,
    policy: str,
) -> None:
    await _configure(broker, queue, policy)
    offsets = await _push_some(broker, queue, rng, 120)
    # This one knows half of what is there, and will learn the rest from what is merged.
    await _check(other_broker, queue, rng, dict(list(offsets.items())[:60]), "before")
    offsets |= await _push_some(broker, queue, rng, 40)
    await merge(queue)
    await _check(broker, queue, rng, offsets, "who has pushed it")
    await _check(other_broker, queue, rng, offsets, "who knows a part")
    later = await start_broker(merging_dsn)
    await _check(later, queue, rng, offsets, "who was started later")
    heads = [max(at for (held, _), at in offsets.items() if held == name) for name in _PARTITIONS]
    for number, each in enumerate((broker, later, other_broker), start=1):
        for partition, head in zip(_PARTITIONS, heads, strict=True):
            pushed = await _push(each, queue, partition, [uuid.uuid4().hex])
            assert pushed == [(head + number, False)]
    await later.stop()


async def test_off_stores_every_message_behind_what_is_merged(
    broker: Broker, queue: str, merge: Merge
) -> None:
    await _configure(broker, queue, "off")
    for number in range(30):
        assert await _push(broker, queue, "p", ["same"]) == [(number, False)]
    await merge(queue)
    for number in range(30, 34):
        assert await _push(broker, queue, "p", ["same"]) == [(number, False)]


async def test_a_server_that_knows_half_of_a_merged_row_goes_on(
    broker: Broker,
    other_broker: Broker,
    queue: str,
    merge: Merge,
    connection: asyncpg.Connection,
) -> None:
    """What it knows ends inside of the row: whatever is made of that, nothing is stored twice."""
    await _configure(broker, queue, "window")
    for number in range(10):
        await _push(broker, queue, "p", [f"mine {number}"])
    partition = broker.catalog.cached(queue, "p")
    assert partition is not None and partition.known == 10 and partition.known_at is not None
    for number in range(10):
        await _push(other_broker, queue, "p", [f"others {number}"])
    await merge(queue)
    row = await connection.fetchrow("select * from queen.partitions where id = $1", partition.id)
    assert row is not None and row["head"] == 20
    for step in (1, -1):
        is_true = await connection.fetchval(
            "select queen.is_still_true($1, $2, $3, $4, $5)",
            partition.id,
            partition.known,
            partition.known_at + timedelta(microseconds=step),
            row["head"],
            row["head_at"],
        )
        assert is_true is False, f"true of {step} µs from when it was"
    answers = await _push(broker, queue, "p", ["others 3", "new", "mine 9", "others 9"])
    assert answers == [(13, True), (20, False), (9, True), (19, True)]
    await merge(queue, must=False)
    assert await _push(broker, queue, "p", ["new"]) == [(20, True)]
    assert await _push(other_broker, queue, "p", ["new", "newer"]) == [(20, True), (21, False)]


async def test_nothing_becomes_true_of_a_partition(
    history: History, merge: Merge, connection: asyncpg.Connection
) -> None:
    """A server that knows all of a partition goes on; one that knows another one never does."""

    async def answers() -> list[bool]:
        found = []
        for one in history.stored:
            end = one.base_offset + len(one.ids)
            for known, step in ((end, 0), (end, 1), (end, -1)):
                found.append(
                    await connection.fetchval(
                        "select queen.is_still_true(id, $2, $3, head, head_at)"
                        " from queen.partitions where id = $1",
                        one.partition_id,
                        known,
                        one.at + timedelta(microseconds=step),
                    )
                )
        return found

    assert await answers() == [True, False, False] * len(history.stored)
    await merge(history.queue)
    now = await answers()
    heads = {name: len(history.of(name)) for name in history.partitions}
    for at, one in enumerate(history.stored):
        is_true, *others = now[3 * at : 3 * at + 3]
        place = f"{one.partition} {one.base_offset}"
        assert others == [False, False], place
        # Of what is merged with what comes behind it, nothing may be known.
        assert is_true or one.base_offset + len(one.ids) < heads[one.partition], place


@pytest.mark.parametrize("hashed", [1.0, 0.6, 0.0], ids=["all", "some", "none"])
async def test_the_window_ends_inside_of_what_is_merged(
    api: Api, broker: Broker, write: Write, merge: Merge, hashed: float
) -> None:
    """Ids are refused by the times that they had before, and those without hashes are not."""
    history = await write(
        gaps_us=[1000, 1_000_000, 120_000_000],
        rest=timedelta(0),
        large=0,
        partitions=2,
        stretches=40,
        hashed=hashed,
    )
    at = quiet_instants(history)[-3]
    seconds = int((datetime.now(UTC) - at).total_seconds())
    api.configure(history.queue, dedupWindowSeconds=seconds)
    await merge(history.queue, must=hashed != 0.6)
    for partition in history.partitions:
        stored = [one for one in history.stored if one.partition == partition]
        # The newest first: what is stored as new must not get in the way of others.
        for one in reversed(stored):
            answers = await _push(broker, history.queue, partition, one.ids)
            is_known = one.has_hashes and microseconds(one.at) >= microseconds(at)
            assert [repeated for _, repeated in answers] == [is_known] * len(one.ids), (
                f"{partition} {one.base_offset} of {one.at}, the window begins at {at}"
            )
            if is_known:
                assert answers[0][0] == one.base_offset

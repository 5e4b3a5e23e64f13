"""Schedules: one message for each tick on any number of servers, and what is made up later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import asyncpg
import pytest

from queen import Queen
from queen.core.tasks.cron import next_ticks, parse_cron, ticks_after
from queen.errors import BadRequest, Conflict, NotFound
from queen.storage.embedded import EmbeddedPostgres
from queen.testing import Clock
from tests import databases
from tests.conftest import ServerProcess
from tests.tasks.working import working
from tests.waiting import until_async

HOUR = 3600


async def ticks_of(connection: asyncpg.Connection, queen: Queen, queue: str) -> list[datetime]:
    """Return the ticks that a queue has got, in the order in which they are stored.

    A server that is at it may still have some on their way: nothing is due any more when none of
    them is in the outbox.
    """

    async def is_settled() -> bool:
        waiting = "select count(*) from queen.staged where queue = $1"
        return bool(await connection.fetchval(waiting, queue) == 0)

    await until_async(is_settled)
    await queen.queue(queue).create()
    return [tick_in(stored.transaction_id) async for stored in queen.queue(queue).replay()]


def tick_in(transaction_id: str) -> datetime:
    """Return the tick that the id of a message names: `cron:<name>:<tick>@<partition>`."""
    text = transaction_id.partition("@")[0][-len("2026-01-01T00:00Z") :]
    return datetime.strptime(text, "%Y-%m-%dT%H:%MZ").replace(tzinfo=UTC)


async def advance_by_steps(clocks: tuple[Clock, Clock], queue: str, steps: list[int]) -> None:
    """Let time pass on two servers at once, again and again: both look for ticks each time."""
    for step in steps:
        await asyncio.gather(*(clock.advance(step / 2, queue=queue) for clock in clocks))


async def test_two_servers_push_one_message_for_each_tick(
    queen: Queen, other_queen: Queen, queue: str, connection: asyncpg.Connection
) -> None:
    """A year of hours in a zone that puts its clocks forward and back, on two servers at once."""
    await queen.queue(queue).config(dedup="off").create()
    made = await queen.queue(queue).cron(
        f"hourly-{queue}", "0 * * * *", zone="Europe/Berlin", catch_up="all", catch_up_limit=1000
    )
    clocks = (Clock(queen), Clock(other_queen))
    await advance_by_steps(clocks, queue, [5 * HOUR] * 6 + [1000 * HOUR, 999 * HOUR, 90, 30, HOUR])
    # In order they are while nobody moves what is stored under the hands of another server.
    ticks = sorted(await ticks_of(connection, queen, queue))
    first = datetime.fromisoformat(made["nextAt"])
    assert ticks[0] == first
    # Nothing twice and nothing left out; dedup, which is off, had nothing to do with it.
    assert ticks == [first + n * timedelta(hours=1) for n in range(len(ticks))]
    assert len(ticks) >= 2030
    shown = await queen.admin.schedule(f"hourly-{queue}")
    assert shown["ticks"] == len(ticks)
    assert shown["missed"] == 0
    assert datetime.fromisoformat(shown["lastAt"]) == ticks[-1]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
async def test_a_year_of_days_comes_due_by_the_calendar(
    queen: Queen, queue: str, zone: str, connection: asyncpg.Connection
) -> None:
    """Through the broker: a time that does not exist, and one that exists twice."""
    name = f"nightly-{queue}"
    made = await queen.queue(queue).cron(
        name, "30 2 * * *", zone=zone, catch_up="all", catch_up_limit=1000
    )
    await Clock(queen).advance(400 * 24 * HOUR, queue=queue)
    ticks = await ticks_of(connection, queen, queue)
    local = [tick.astimezone(ZoneInfo(zone)) for tick in ticks]
    days = [at.date() for at in local]
    assert days == [days[0] + timedelta(n) for n in range(len(days))]
    assert 399 <= len(days) <= 401
    assert {f"{at:%H:%M}" for at in local} == {"02:30", "03:00"}
    assert [f"{at:%H:%M}" for at in local].count("03:00") in (1, 2)
    assert datetime.fromisoformat(made["nextAt"]) == ticks[0]


@pytest.mark.parametrize(
    ("catch_up", "limit", "kept"), [("none", 1, 0), ("last", 1, 1), ("all", 5, 5), ("all", 100, 24)]
)
async def test_missed_ticks_are_made_up_as_the_schedule_says(
    queen: Queen,
    queue: str,
    clock: Clock,
    connection: asyncpg.Connection,
    catch_up: str,
    limit: int,
    kept: int,
) -> None:
    """Nobody is there for a day: a hand keeps the servers away from the schedule meanwhile."""
    name = f"hourly-{queue}"
    await queen.queue(queue).cron(name, "0 * * * *", catch_up=catch_up, catch_up_limit=limit)
    first = datetime.fromisoformat((await queen.admin.schedule(name))["nextAt"])
    # So that no tick is near: it is half past now.
    now = first - timedelta(minutes=30)
    await set_now(connection, name, now)
    await clock.advance(24 * HOUR, queue=queue)
    ticks = await ticks_of(connection, queen, queue)
    missed = [first + n * timedelta(hours=1) for n in range(24)]
    assert ticks == missed[24 - kept :]
    shown = await queen.admin.schedule(name)
    assert shown["missed"] >= (1 if kept < 24 else 0)
    assert datetime.fromisoformat(shown["nextAt"]) == first + timedelta(hours=24)
    # On time again.
    await clock.advance(30 * 60 + 1, queue=queue)
    assert (await ticks_of(connection, queen, queue))[-1] == first + timedelta(hours=24)


async def set_now(connection: asyncpg.Connection, name: str, now: datetime) -> None:
    """Let the time of a schedule be another."""
    await connection.execute(
        "update queen.schedules set due_at = next_at - ($2 - clock_timestamp()) where name = $1",
        name,
        now,
    )


async def test_a_server_that_was_away_for_long_finds_its_ticks(
    postgres: EmbeddedPostgres, queue: str
) -> None:
    """Servers are killed, and what is due meanwhile is pushed by the next, once."""
    async with databases.own_database(postgres.dsn) as dsn:
        connection = await asyncpg.connect(dsn)
        running = ServerProcess("--database-url", dsn)
        async with Queen(running.url) as queen:
            await queen.queue(queue).cron("c", "* * * * *", {"n": 1}, catch_up="all")
        running.kill()
        await connection.execute("update queen.schedules set due_at = due_at - interval '1 hour'")
        servers = [ServerProcess("--database-url", dsn) for _ in range(2)]
        async with Queen(servers[0].url) as queen:
            # All but the last: another minute may begin at any time.
            messages = await queen.queue(queue).batch(100).pop(wait_s=30)
            ticks = [tick_in(message.transaction_id) for message in messages]
            assert len(ticks) >= 60
            assert ticks == [ticks[0] + n * timedelta(minutes=1) for n in range(len(ticks))]
            assert {message.data["n"] for message in messages} == {1}
        for server in servers:
            assert server.stop() == 0
        await connection.close()


async def test_a_schedule_rests_and_goes_on(
    queen: Queen, queue: str, clock: Clock, connection: asyncpg.Connection
) -> None:
    name = f"h-{queue}"
    await queen.queue(queue).cron(name, "0 * * * *", catch_up="all")
    await queen.admin.pause_schedule(name)
    assert (await queen.admin.schedule(name))["state"] == "paused"
    assert (await queen.admin.schedule(name))["nextAt"] is None
    await clock.advance(5 * HOUR, queue=queue)
    assert await ticks_of(connection, queen, queue) == []
    resumed = await queen.admin.resume_schedule(name)
    assert resumed["state"] == "active"
    await clock.advance(HOUR, queue=queue)
    ticks = await ticks_of(connection, queen, queue)
    assert ticks == [datetime.fromisoformat(resumed["nextAt"])]
    # Paused twice is paused; a deleted one says no more.
    await queen.admin.pause_schedule(name)
    await queen.admin.pause_schedule(name)
    await queen.admin.delete_schedule(name)
    await clock.advance(5 * HOUR, queue=queue)
    assert len(await ticks_of(connection, queen, queue)) == 1
    for call in (
        queen.admin.schedule,
        queen.admin.pause_schedule,
        queen.admin.resume_schedule,
        queen.admin.delete_schedule,
        queen.admin.schedule_ticks,
    ):
        with pytest.raises(NotFound, match="Schedule"):
            await call(name)


async def test_the_same_definition_changes_nothing_and_another_says_in_what(
    queen: Queen, queue: str
) -> None:
    name = f"d-{queue}"
    define = queen.admin.define_schedule
    first = await define(name, queue, "0 3 * * *", {"a": 1}, replace=False)
    assert (first["created"], first["changed"]) == (True, False)
    again = await define(name, queue, "0 3 * * *", {"a": 1}, replace=False)
    assert (again["created"], again["changed"]) == (False, False)
    with pytest.raises(Conflict, match="cron, zone, payload") as refused:
        await define(name, queue, "0 4 * * *", {"a": 2}, zone="Asia/Tokyo", replace=False)
    assert refused.value.details["differs"] == ["cron", "zone", "payload"]
    changed = await define(name, queue, "0 4 * * *", {"a": 2}, zone="Asia/Tokyo")
    assert (changed["created"], changed["changed"]) == (False, True)
    ticks = (await queen.admin.schedule_ticks(name, 3))["ticks"]
    assert [
        f"{datetime.fromisoformat(t).astimezone(ZoneInfo('Asia/Tokyo')):%H}" for t in ticks
    ] == ["04"] * 3
    assert ticks[0] == changed["nextAt"]
    listed = await queen.admin.schedules(queue)
    assert [row["name"] for row in listed["schedules"]] == [name]
    await queen.admin.delete_schedule(name)


async def test_what_cannot_be_a_schedule_is_refused(queen: Queen, queue: str) -> None:
    define = queen.admin.define_schedule
    bad: list[dict[str, Any]] = [
        {"cron": "* * * *"},
        {"cron": "0 0 30 2 *"},
        {"zone": "Mars/Base"},
        {"zone": "../../etc/passwd"},
        {"catch_up": "some"},
        {"catch_up_limit": 0},
        {"catch_up_limit": 100_000},
        {"name": ""},
        {"name": "x" * 101},
        {"name": "a\nb"},
        {"queue": ""},
        {"partition": "\x00"},
        {"payload": "x" * 90_000, "catch_up": "all"},
    ]
    for changes in bad:
        asked = {"name": "n", "queue": queue, "cron": "0 3 * * *", **changes}
        with pytest.raises(BadRequest):
            await define(**asked)


async def test_a_schedule_may_have_any_name_that_a_message_can_be_known_by(
    queen: Queen, queue: str, clock: Clock, connection: asyncpg.Connection
) -> None:
    names = [f"ключ {queue}", f"a@b:c {queue}", f"x/y?z#{queue}"]
    for name in names:
        await queen.queue(queue).partition("p@q").cron(name, "0 * * * *", {"of": name})
        assert (await queen.admin.schedule(name))["name"] == name
    await clock.advance(HOUR, queue=queue)
    await ticks_of(connection, queen, queue)
    messages = await queen.queue(queue).pop(batch=10)
    assert sorted(message.data["of"] for message in messages) == sorted(names)
    assert {message.partition for message in messages} == {"p@q"}
    for name in names:
        await queen.admin.delete_schedule(name)


async def test_a_task_is_called_by_the_calendar(queen: Queen, queue: str, clock: Clock) -> None:
    called: asyncio.Queue[str] = asyncio.Queue()

    @queen.queue(queue).task
    async def report(kind: str) -> str:
        called.put_nowait(kind)
        return kind

    name = f"t-{queue}"
    with pytest.raises(TypeError, match="missing a required argument"):
        await report.cron(name, "0 * * * *")
    made = await report.cron(name, "0 * * * *", {"kind": "hourly"}, zone="Asia/Kolkata")
    async with working(queen):
        await clock.advance(HOUR + 1, queue=queue)
        assert await asyncio.wait_for(called.get(), 30) == "hourly"
        tick = datetime.fromisoformat(made["nextAt"])
        job = queen.queue(queue).job(f"cron:{name}:{tick:%Y-%m-%dT%H:%MZ}@0")
        assert await job.result(30) == "hourly"
    await queen.admin.delete_schedule(name)


async def test_what_waits_for_an_encrypted_queue_is_encrypted(
    queen: Queen, queue: str, clock: Clock, connection: asyncpg.Connection
) -> None:
    await queen.queue(queue).config(encryption_enabled=True).create()
    name = f"e-{queue}"
    await queen.queue(queue).cron(name, "0 * * * *", "very-secret")
    again = await queen.queue(queue).cron(name, "0 * * * *", "very-secret")
    assert again["changed"] is False
    kept = "select payload from queen.schedules where name = $1"
    assert b"very-secret" not in await connection.fetchval(kept, name)
    await clock.advance(HOUR, queue=queue)
    (message,) = await queen.queue(queue).pop(wait_s=10)
    assert message.data == "very-secret"
    await queen.admin.delete_schedule(name)


@pytest.fixture
async def damaged(
    queen: Queen, queue: str, connection: asyncpg.Connection
) -> AsyncIterator[tuple[str, str]]:
    """A schedule whose zone this server does not know, beside one that is well."""
    names = (f"bad-{queue}", f"well-{queue}")
    for name in names:
        await queen.queue(queue).cron(name, "0 * * * *", name)
    await connection.execute("update queen.schedules set zone = 'X/Y' where name = $1", names[0])
    yield names
    for name in names:
        await queen.admin.delete_schedule(name)


async def test_a_schedule_that_cannot_be_read_holds_up_no_other(
    queen: Queen, queue: str, clock: Clock, damaged: tuple[str, str]
) -> None:
    await clock.advance(HOUR, queue=queue)
    messages = await queen.queue(queue).pop(batch=9, wait_s=20)
    assert [message.data for message in messages] == [damaged[1]]
    with pytest.raises(BadRequest, match="no time zone 'X/Y'"):
        await queen.admin.schedule_ticks(damaged[0])


def test_the_next_ticks_are_those_of_the_expression() -> None:
    after = datetime(2026, 1, 1, tzinfo=UTC)
    cron, zone = parse_cron("0 9 * * MON"), ZoneInfo("Europe/Berlin")
    assert next_ticks(cron, zone, after, 2) == [
        datetime(2026, 1, 5, 8, tzinfo=UTC),
        datetime(2026, 1, 12, 8, tzinfo=UTC),
    ]
    assert next(ticks_after(cron, zone, after)) == datetime(2026, 1, 5, 8, tzinfo=UTC)

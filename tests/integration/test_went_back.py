"""The database goes back in time under a server that remembers more.

A restore, or a failover to a replica that was behind, takes back what was confirmed. Nobody
tells the servers: their connections may look the same, and they have heads, positions and
segments in memory that are no longer true. What is lost is lost. But a server must notice,
serve what is there, write on from where the log now ends, and never spin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

from tests.api import Api
from tests.conftest import ServerProcess

PARTITION = "p"
# Enough for the background work of a few servers, far less than a loop makes.
# Streams that other tests left behind are planned meanwhile.
MAX_TRANSACTIONS_PER_S = 1500

_GO_BACK = """
with p as (
    select p.id from queen.partitions p join queen.queues q on q.id = p.queue_id
    where q.name = $1 and p.name = $2
), lost as (
    delete from queen.segments s using p where s.partition_id = p.id and s.base_offset >= $3
), cursors as (
    update queen.cursors c
    set committed = least(committed, $4), lease_id = null, lease_until = null,
        batch_start = null, batch_end = null, attempts = 0, receipts = ''
    from p where c.partition_id = p.id
)
update queen.partitions x
set head = $3, head_at = coalesce((
    select max(s.created_at) from queen.segments s
    where s.partition_id = x.id and s.base_offset < $3), '-infinity')
from p where x.id = p.id
"""


@pytest.fixture
def one(dsn: str, start_server: Callable[..., ServerProcess]) -> ServerProcess:
    """A server of the test's own: what it uses is counted."""
    return start_server("--database-url", dsn)


@pytest.fixture
def api(one: ServerProcess) -> Iterator[Api]:
    opened = Api(one.url)
    yield opened
    opened.close()


def push(api: Api, queue: str, *payloads: object) -> list[str]:
    """Push messages one by one; each is a segment. Returns what became of each."""
    statuses = []
    for payload in payloads:
        item = {"queue": queue, "partition": PARTITION, "payload": payload}
        answer = api.push({**item, "transactionId": f"{payload}"})
        assert answer.status == 201, answer.raw
        statuses.append(answer.json[0]["status"])
    return statuses


def read(
    api: Api, queue: str, partition: str | None = None, **query: object
) -> list[tuple[int, object]]:
    """Read and finish what is there; return offsets and payloads."""
    query = {"batch": 100, "autoAck": "true", **query}
    messages = api.messages(queue, partition, **query)
    return [(one["offset"], one["data"]) for one in messages]


async def go_back(
    connection: asyncpg.Connection, queue: str, head: int, committed: int | None = None
) -> None:
    """Put a partition back to an earlier end, and groups to an earlier place."""
    place = head if committed is None else committed
    await connection.execute(_GO_BACK, queue, PARTITION, head, place)


async def transactions(connection: asyncpg.Connection) -> int:
    await connection.execute("select pg_stat_force_next_flush()")
    count: int = await connection.fetchval(
        "select xact_commit from pg_stat_database where datname = current_database()"
    )
    return count


@pytest.mark.parametrize("partition", [PARTITION, None], ids=["named", "any"])
async def test_a_long_poll_keeps_its_time_and_does_not_spin(
    one: ServerProcess,
    api: Api,
    queue: str,
    connection: asyncpg.Connection,
    partition: str | None,
) -> None:
    push(api, queue, *range(10))
    assert len(read(api, queue)) == 10
    await go_back(connection, queue, head=6)
    process = psutil.Process(one.pid)
    before, started = await transactions(connection), time.monotonic()
    used = process.cpu_times()
    assert read(api, queue, partition, wait="true", timeout=2000) == []
    took_s = time.monotonic() - started
    assert 1.9 < took_s < 20
    assert await transactions(connection) - before < MAX_TRANSACTIONS_PER_S * took_s
    assert process.cpu_times().user - used.user < took_s / 2


async def test_what_is_there_is_delivered_again(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, *range(10))
    assert len(read(api, queue)) == 10
    await go_back(connection, queue, head=6, committed=4)
    again = read(api, queue, PARTITION, wait="true", timeout=20_000)
    assert again == [(4, 4), (5, 5)]


@pytest.mark.parametrize("partition", [PARTITION, None], ids=["named", "any"])
async def test_pushes_go_on_where_the_log_now_ends(
    api: Api, queue: str, connection: asyncpg.Connection, partition: str | None
) -> None:
    push(api, queue, *range(10))
    for group in ("g", "other"):
        assert len(read(api, queue, consumerGroup=group)) == 10
    await go_back(connection, queue, head=6)
    # What was lost is not there, so it is no duplicate; what is there still is.
    assert push(api, queue, 5, 8, "new") == ["duplicate", "queued", "queued"]
    for group in ("g", "other"):
        started = time.monotonic()
        found = read(api, queue, partition, consumerGroup=group, wait="true", timeout=30000)
        assert found == [(6, 8), (7, "new")]
        assert time.monotonic() - started < 15
    assert push(api, queue, "more") == ["queued"]
    assert read(api, queue, partition, consumerGroup="g", wait="true", timeout=30000) == [
        (8, "more")
    ]


async def test_a_poll_that_waits_is_served_by_the_next_push(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, *range(10))
    assert len(read(api, queue)) == 10
    poll = api.twin()
    poll.send("GET", f"/api/v1/pop/queue/{queue}?wait=true&timeout=30000")
    await go_back(connection, queue, head=6)
    started = time.monotonic()
    push(api, queue, "new")
    (message,) = poll.receive().messages
    poll.close()
    assert (message["offset"], message["data"]) == (6, "new")
    assert time.monotonic() - started < 15


async def test_nothing_that_was_lost_is_delivered_from_memory(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, *range(10))
    await go_back(connection, queue, head=6)
    # Beyond the old end, in segments that begin elsewhere.
    for at in range(4):
        items = [{"queue": queue, "partition": PARTITION, "payload": [at, n]} for n in range(3)]
        assert api.push(*items).status == 201
    found = read(api, queue, PARTITION)
    assert [offset for offset, _ in found] == list(range(18))
    new = [[at, n] for at in range(4) for n in range(3)]
    assert [data for _, data in found] == [*range(6), *new]


async def test_a_lease_that_is_lost_is_refused(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, *range(10))
    messages = api.messages(queue, batch=8)
    assert len(messages) == 8
    await go_back(connection, queue, head=6)
    results = api.ack_batch(messages).json["results"]
    assert [one["success"] for one in results] == [False] * 8
    assert read(api, queue, PARTITION) == [(n, n) for n in range(6)]


async def test_what_another_server_wrote_since_is_delivered(
    api: Api, other_api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    push(api, queue, *range(10))
    await go_back(connection, queue, head=6)
    # A failover breaks connections; that of the listener is one that always is open.
    broken = await connection.fetch(
        "select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen %'"
    )
    assert len(broken) >= 2
    push(other_api, queue, *(f"new {n}" for n in range(9)))
    for _ in range(5):
        assert api.call("GET", "/health").status == 200
    found = [data for _ in range(3) for _, data in read(api, queue, PARTITION, batch=5)]
    assert found == [*range(6), *(f"new {n}" for n in range(9))]

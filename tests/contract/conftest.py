"""What the contract tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing

import asyncpg
import pytest

from queen.storage.embedded import EmbeddedPostgres
from tests import databases
from tests.api import Api, Poll, pop_path
from tests.conftest import ServerProcess
from tests.contract.rawhttp import RawConnection
from tests.documented import Documented
from tests.waiting import until

Park = Callable[..., Poll]
Connect = Callable[[ServerProcess], Api]


@pytest.fixture
async def own_database(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    """A database of the test's own: what it deletes or switches off is nobody else's."""
    async with databases.own_database(postgres.dsn) as dsn:
        yield dsn


@pytest.fixture
def own_server(own_database: str) -> Iterator[ServerProcess]:
    running = ServerProcess("--database-url", own_database)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="session")
def documented(server: ServerProcess) -> Documented:
    """The API document as the server gives it."""
    with closing(Api(server.url)) as own:
        return Documented(own.call("GET", "/api/v1/openapi.json").json)


@pytest.fixture(autouse=True)
def hold_to_the_document(documented: Documented, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer that a contract test receives must be one that the document describes."""
    monkeypatch.setattr(Api, "observer", staticmethod(documented.check))


def settle(api: Api) -> None:
    """Let the server come to rest: what was sent before is parked or in the database.

    Each health check is a round trip to the server and from there to the database, behind
    those that an earlier request makes before it parks.
    """
    for _ in range(5):
        assert api.call("GET", "/health").status == 200


@pytest.fixture
def park() -> Iterator[Park]:
    """Start long polls; they are parked on return, and hung up when the test ends."""
    with ExitStack() as opened:

        def start(
            api: Api,
            queue: str,
            partition: str | None = None,
            *,
            path: str | None = None,
            **query: object,
        ) -> Poll:
            query = {"wait": "true", "timeout": 20_000, **query}
            poll = Poll(api, path or pop_path(queue, partition, **query))
            opened.callback(poll.hang_up)
            settle(api)
            return poll

        yield start


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open connections to any server; they are closed when the test ends."""
    with ExitStack() as opened:

        def open_one(running: ServerProcess) -> Api:
            own = Api(running.url)
            opened.callback(own.close)
            return own

        yield open_one


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[RawConnection]:
    with RawConnection(server.url) as opened:
        yield opened


@pytest.fixture
def twin(api: Api) -> Iterator[Api]:
    """A second connection to the same server."""
    opened = api.twin()
    yield opened
    opened.close()


async def age(connection: asyncpg.Connection, queue: str, seconds: int) -> None:
    """Make everything in a queue older, as if time had passed."""
    await connection.execute(
        """
        with mine as (select id from queen.queues where name = $1),
        moved as (
            update queen.segments set created_at = created_at - make_interval(secs => $2)
            where queue_id in (select id from mine)
        )
        update queen.partitions set head_at = head_at - make_interval(secs => $2)
        where queue_id in (select id from mine)
        """,
        queue,
        seconds,
    )


async def stored(connection: asyncpg.Connection, queue: str) -> int:
    """Return how many messages a queue holds."""
    count: int = await connection.fetchval(
        """
        select coalesce(sum(s.end_offset - s.base_offset), 0)::integer
        from queen.segments s join queen.queues q on q.id = s.queue_id where q.name = $1
        """,
        queue,
    )
    return count


def refresh(api: Api) -> None:
    """Count now, or let another server that begins just now."""

    def is_counted() -> bool:
        answer = api.call("POST", "/api/v1/stats/refresh")
        return answer.status == 200 and not answer.json["skipped"]

    until(is_counted)

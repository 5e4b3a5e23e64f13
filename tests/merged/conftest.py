"""A database of this folder's own, in which everything is merged again and again."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest

from queen.core.cipher import KeyRing
from queen.service.broker import Broker, Limits
from queen.storage.database import Database, session_settings
from queen.storage.embedded import EmbeddedPostgres
from tests import databases
from tests.api import Api
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.long import long
from tests.merged import merging
from tests.merged.history import History, Shape, write_history
from tests.waiting import until_async

Merge = Callable[..., Awaitable[int]]
Write = Callable[..., Awaitable[History]]

_ROWS = "select count(*) from queen.segments s join queen.queues q on q.id = s.queue_id"


@pytest.fixture(scope="session")
async def merging_dsn(postgres: EmbeddedPostgres) -> AsyncIterator[str]:
    async with databases.own_database(postgres.dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def server(merging_dsn: str) -> Iterator[ServerProcess]:
    running = ServerProcess("--database-url", merging_dsn, "--merge-after", "0")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def second_server(merging_dsn: str) -> Iterator[ServerProcess]:
    """Another server on the same database."""
    running = ServerProcess("--database-url", merging_dsn, "--merge-after", "0")
    yield running
    assert running.stop() == 0


@pytest.fixture
def other_api(second_server: ServerProcess) -> Iterator[Api]:
    opened = Api(second_server.url)
    yield opened
    opened.close()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    opened = Api(server.url)
    yield opened
    opened.close()


@pytest.fixture
async def connection(merging_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(merging_dsn, server_settings=session_settings())
    yield opened
    await opened.close()


@pytest.fixture
async def database(merging_dsn: str) -> AsyncIterator[Database]:
    opened = await Database.connect(merging_dsn, size=4)
    yield opened
    await opened.close()


async def start_broker(dsn: str) -> Broker:
    """Services without a server around them."""
    keys = KeyRing([bytes.fromhex(ENCRYPTION_KEY)])
    return await Broker.start(dsn, Limits(connections=3, merge_after_s=0), keys)


# No longer than for its module: a broker whose loop other tests block keeps jobs from others.
@pytest.fixture(scope="module")
async def broker(merging_dsn: str) -> AsyncIterator[Broker]:
    started = await start_broker(merging_dsn)
    yield started
    await started.stop()


@pytest.fixture(scope="module")
async def other_broker(merging_dsn: str) -> AsyncIterator[Broker]:
    """Another server on the same database."""
    started = await start_broker(merging_dsn)
    yield started
    await started.stop()


@pytest.fixture(params=[1, *long(*range(2, 12))])
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Every test has its own chance, the same in each run."""
    return random.Random(f"{request.node.originalname} {request.param}")


@pytest.fixture
def merge(merging_dsn: str, connection: asyncpg.Connection) -> Merge:
    """Merge what is stored; a queue has fewer rows then, if it must."""

    async def run(queue: str, *, must: bool = True) -> int:
        rows = await rows_of(connection, queue)
        replaced = 0

        async def is_merged() -> bool:
            nonlocal replaced
            replaced += await merging.merge_all(merging_dsn)
            return await rows_of(connection, queue) < rows

        if await is_merged() or not must:
            await check_rows(connection, queue)
            return replaced
        # Another server was at it, or at something that must not be done meanwhile.
        await until_async(is_merged, within_s=10)
        await check_rows(connection, queue)
        return replaced

    return run


async def rows_of(connection: asyncpg.Connection, queue: str) -> int:
    count: int = await connection.fetchval(f"{_ROWS} where q.name = $1", queue)
    return count


_WITH_GAPS = """
select p.name, w.base_offset, w.end_offset, w.next_offset
from queen.queues q join queen.partitions p on p.queue_id = q.id
cross join lateral (
    select s.base_offset, s.end_offset,
           coalesce(lead(s.base_offset) over (order by s.base_offset), p.head) as next_offset,
           s.created_at > coalesce(lead(s.created_at) over (order by s.base_offset), p.head_at)
               as is_early
    from queen.segments s where s.partition_id = p.id
) w
where q.name = $1 and (w.end_offset <> w.next_offset or w.is_early)
"""
_WITHOUT_SEGMENT = """
select m.partition_id, m.base_offset, m.end_offset
from queen.merged_segments m join queen.queues q on q.id = m.queue_id
where q.name = $1 and not exists (
    select from queen.segments s
    where s.partition_id = m.partition_id and s.base_offset = m.base_offset
      and s.end_offset = m.end_offset and s.created_at = m.first_at)
"""


async def check_rows(connection: asyncpg.Connection, queue: str) -> None:
    """Segments follow each other up to the head, and what is told of merged ones is of them."""
    gaps = await connection.fetch(_WITH_GAPS, queue)
    assert not gaps, f"segments do not follow each other: {[tuple(row) for row in gaps[:5]]}"
    if await connection.fetchval("select to_regclass('queen.merged_segments')") is not None:
        alone = await connection.fetch(_WITHOUT_SEGMENT, queue)
        assert not alone, f"merged, and no segment: {[tuple(row) for row in alone[:5]]}"


@pytest.fixture
def write(connection: asyncpg.Connection, queue: str, rng: random.Random) -> Write:
    """Write a history to the queue of the test."""

    async def run(name: str = queue, **shape: object) -> History:
        return await write_history(connection, name, rng, Shape(**shape))  # type: ignore[arg-type]

    return run


@pytest.fixture
async def history(write: Write) -> History:
    return await write()

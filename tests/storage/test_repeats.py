"""A statement whose answer was lost is sent again only if that does no harm."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from queen.errors import OutcomeUnknown
from queen.storage.database import Database


class Wire:
    """Stands between a client and PostgreSQL, and can lose an answer."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._loses_next = False

    def lose_next_answer(self) -> None:
        self._loses_next = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(self._socket_path)
        there = asyncio.create_task(self._forward(reader, ours, loses=False))
        back = asyncio.create_task(self._forward(theirs, writer, loses=True))
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in (there, back):
            task.cancel()
        for end in (ours, writer):
            end.close()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, loses: bool
    ) -> None:
        while data := await reader.read(65536):
            if loses and self._loses_next:
                # The statement is committed by now: this is its answer.
                self._loses_next = False
                return
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def wire(dsn: str) -> AsyncIterator[tuple[Wire, Database]]:
    """A database behind a wire, over one connection."""
    asked = {key: values[0] for key, values in parse_qs(urlsplit(dsn).query).items()}
    wire = Wire(f"{asked['host']}/.s.PGSQL.{asked['port']}")
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    name = urlsplit(dsn).path
    database = await Database.connect(f"postgresql://postgres@127.0.0.1:{port}{name}", size=1)
    yield wire, database
    await database.close()
    server.close()


async def test_an_event_is_recorded_once_when_its_answer_is_lost(
    wire: tuple[Wire, Database], connection: asyncpg.Connection
) -> None:
    cable, database = wire
    queue_id = await connection.fetchval(
        "insert into queues (name) values ($1) returning id", f"q-{uuid.uuid4().hex}"
    )
    partition_id = await connection.fetchval(
        "insert into partitions (queue_id, name) values ($1, 'p') returning id", queue_id
    )
    event = (partition_id, "message", "group", "info", "{}", ["a name"])
    # The first one is prepared here, so that the next is one question and one answer.
    await database.findval("record_trace", *event)
    cable.lose_next_answer()
    with pytest.raises(OutcomeUnknown):
        await database.findval("record_trace", *event)
    count = await connection.fetchval(
        "select count(*) from traces where partition_id = $1", partition_id
    )
    assert count == 2


async def test_what_does_no_harm_twice_is_sent_again(wire: tuple[Wire, Database]) -> None:
    cable, database = wire
    await database.execute("touch_groups", [])
    cable.lose_next_answer()
    await database.execute("touch_groups", [])

"""Encrypted queues at every end of a pipeline: payloads are exact, and nothing of them lies in
the database in plain text.

The events are those of the other oracles, with a secret in each; `QUEEN_ORACLE_EVENTS` says how
many.
"""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
import zstandard
from pyspark.sql import SparkSession

from queen import SyncQueen
from queen.core.frame import CODEC_ENCRYPTED, CODEC_ZSTD
from queen.spark.pipelines.backfill import backfill, plain_rows
from queen.spark.pipelines.run import Options, checked_definition
from tests.api import Api
from tests.conftest import ServerProcess
from tests.spark.delivering import GRACE_S, SCHEMA, SIZE_S, iso, window_of
from tests.spark.history import Event, canonical, made_up, messages, write

EVENTS = int(os.environ.get("QUEEN_ORACLE_EVENTS", "400"))
# Fails, where it divides by zero.
SHARE = "700 div (data.amount % 7)"


class Secrets(NamedTuple):
    """Events in an encrypted queue; the secret is in their ids."""

    queue: str
    secret: str
    events: list[Event]

    @property
    def failing(self) -> list[Event]:
        return [event for event in self.events if event.amount % 7 == 0]

    @property
    def sound(self) -> list[Event]:
        return [event for event in self.events if event.amount % 7]


@pytest.fixture
def secrets(api: Api, dsn: str, queue: str) -> Secrets:
    secret = f"geheim-✓-{uuid.uuid4().hex}"
    api.configure(queue, encryptionEnabled=True)
    made = made_up(EVENTS, [queue], seed=EVENTS)
    events = [event._replace(id=f"{secret}-{event.id}") for event in made]
    write(api, dsn, events)
    return Secrets(queue, secret, events)


class Stored:
    """What the database holds."""

    def __init__(self, database: psycopg.Connection[Any]) -> None:
        self._database = database

    def bodies(self, queue: str) -> list[tuple[int, bytes]]:
        """Return codec and bytes of every segment of a queue, and of every dead letter."""
        return self._database.execute(
            "select s.codec, s.body from queen.segments s join queen.queues q on q.id = s.queue_id"
            " where q.name = %(queue)s"
            " union all"
            " select l.codec, l.payload from queen.dead_letters l"
            " join queen.partitions p on p.id = l.partition_id"
            " join queen.queues q on q.id = p.queue_id where q.name = %(queue)s",
            {"queue": queue},
        ).fetchall()

    def columns_with(self, text: str) -> list[str]:
        """Return the columns of the broker's tables in which a text lies as it is."""
        conditions = {
            "bytea": "position(convert_to(%s, 'UTF8') in {}) > 0",
            "text": "position(%s in {}) > 0",
            "jsonb": "position(%s in {}::text) > 0",
        }
        columns = self._database.execute(
            "select c.table_name, c.column_name, c.data_type from information_schema.columns c"
            " join information_schema.tables t using (table_schema, table_name)"
            " where c.table_schema = 'queen' and t.table_type = 'BASE TABLE'"
            " and c.data_type = any(%s)",
            (list(conditions),),
        ).fetchall()
        return [
            f"{table}.{column}"
            for table, column, kind in columns
            if self._database.execute(
                f'select 1 from queen."{table}" where '
                + conditions[kind].format(f'"{column}"')
                + " limit 1",
                (text,),
            ).fetchone()
        ]


@pytest.fixture
def stored(dsn: str) -> Iterator[Stored]:
    with psycopg.connect(dsn, autocommit=True) as database:
        yield Stored(database)


def _opened(codec: int, body: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(body) if codec == CODEC_ZSTD else body


def _check_encrypted(stored: Stored, *queues: str) -> None:
    for name in queues:
        assert {codec for codec, _ in stored.bodies(name)} == {CODEC_ENCRYPTED}, name


def _run(stream: Any, spark: SparkSession, folder: Path) -> None:
    running = stream.run(
        spark,
        checkpoint=str(folder),
        available_now=True,
        starting="earliest",
        max_messages_per_trigger=EVENTS // 3,
    )
    assert running.wait()


def _oracle(events: list[Event]) -> tuple[list[dict[str, Any]], list[Event]]:
    windows: dict[tuple[int, str], list[Event]] = defaultdict(list)
    late = []
    for event in events:
        place = window_of(event)
        if place is None or not place[1]:
            late.append(event)
        else:
            windows[place[0], event.user].append(event)
    rows = [
        {
            "windowStart": iso(start_s),
            "windowEnd": iso(start_s + SIZE_S),
            "user": user,
            "last": max(event.id for event in some),
            "shares": sum(700 // (event.amount % 7) for event in some),
        }
        for (start_s, user), some in windows.items()
    ]
    return rows, late


def test_results_late_messages_and_errors_are_exact_and_nowhere_in_plain_text(
    secrets: Secrets, queen: SyncQueen, spark: SparkSession, server: ServerProcess, api: Api,
    stored: Stored, tmp_path: Path,
) -> None:  # fmt: skip
    out, late, errors = (f"{kind}-{secrets.queue}" for kind in ("out", "late", "errors"))
    for name in (out, late, errors):
        api.configure(name, encryptionEnabled=True)
    stream = queen.stream(f"p-{secrets.queue}").sources(secrets.queue).schema(SCHEMA)
    stream = stream.event_time("data.ts").key("data.user").tumbling_time(SIZE_S)
    stream = stream.grace_period(GRACE_S).late_to(late).errors_to(errors).to(out)
    stream = stream.aggregate(last="max(data.id)", shares=f"sum({SHARE})")
    _run(stream, spark, tmp_path)
    rows, late_events = _oracle(secrets.sound)
    wanted = canonical(rows)
    assert min(len(wanted), len(late_events), len(secrets.failing)) > 5
    assert canonical(messages(api, out)) == wanted
    for name, events in ((late, late_events), (errors, secrets.failing)):
        payloads = [message["data"] for message in messages(api, name)]
        assert canonical(payloads) == canonical(event.payload for event in events), name
    _check_encrypted(stored, secrets.queue, out, late, errors)
    assert stored.columns_with(secrets.secret) == []
    history = backfill(
        checked_definition(stream.definition()), spark, Options(url=server.url), None, None
    )
    assert canonical(plain_rows(history)) == wanted


def test_dead_letters_are_encrypted_and_results_in_an_open_queue_are_not(
    secrets: Secrets, queen: SyncQueen, spark: SparkSession, api: Api, stored: Stored,
    tmp_path: Path,
) -> None:  # fmt: skip
    out = f"out-{secrets.queue}"
    stream = queen.stream(f"p-{secrets.queue}").sources(secrets.queue).schema(SCHEMA)
    _run(stream.select("data.id", share=SHARE).to(out), spark, tmp_path)
    assert canonical(messages(api, out)) == canonical(
        {"id": event.id, "share": 700 // (event.amount % 7)} for event in secrets.sound
    )
    path = f"/api/v1/dlq?queue={secrets.queue}&consumerGroup={stream.name}&limit=1000"
    letters = queen.request("GET", path)["messages"]
    assert canonical(letter["data"] for letter in letters) == canonical(
        event.payload for event in secrets.failing
    )
    _check_encrypted(stored, secrets.queue)
    # So this would find it, were it somewhere else.
    assert secrets.secret.encode() in b"".join(_opened(*body) for body in stored.bodies(out))

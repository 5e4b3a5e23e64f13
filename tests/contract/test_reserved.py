"""Transactions that hang hold up neither pushes nor pops nor acks of other queues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing

import psycopg

from tests.conftest import ServerProcess
from tests.waiting import until

_WAITING = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name = 'queen' and wait_event_type = 'Lock'
"""


def until_stuck(connection: psycopg.Connection, at_least: int) -> None:
    """Return when so many connections of the server wait for a lock."""
    until(lambda: (connection.execute(_WAITING).fetchone() or (0,))[0] >= at_least)


def test_transactions_that_hang_leave_room_for_pushes(
    own_database: str, start_server: Callable[..., ServerProcess]
) -> None:
    running = start_server("--database-url", own_database)
    api = running.api()
    assert api.push({"queue": "stuck", "payload": 1}, {"queue": "free", "payload": 1}).status == 201
    push = {"type": "push", "items": [{"queue": "stuck", "payload": 2}]}
    with (
        psycopg.connect(own_database) as holder,
        psycopg.connect(own_database, autocommit=True) as watcher,
        ExitStack() as opened,
    ):
        holder.execute(
            "select 1 from queen.partitions p join queen.queues q on q.id = p.queue_id"
            " where q.name = 'stuck' for update of p"
        )
        waiting = [opened.enter_context(closing(api.twin())) for _ in range(12)]
        for one in waiting:
            one.send("POST", "/api/v1/transaction", {"operations": [push]})
        until_stuck(watcher, at_least=5)
        assert api.push({"queue": "free", "payload": 2}).status == 201
        (first, second) = api.messages("free", batch=2)
        assert api.ack(first).status == 200 and api.ack(second).status == 200
        assert api.call("GET", "/health").status == 200
        holder.rollback()
        assert {one.receive().status for one in waiting} <= {200, 503}
    assert running.stop() == 0

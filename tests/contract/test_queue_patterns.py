"""Patterns of queues: what is sealed of them holds for queues that are made later too."""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.contract.test_sealed_reads import ROOT, plan, progress, push, read


def cut(api: Api, pattern: str, **more: Any) -> Any:
    answer = api.call("POST", f"{ROOT}/cut", {"pattern": pattern, **more})
    assert answer.status == 200, answer.raw
    return answer.json


def names(answer: Any) -> list[str]:
    return [queue["queue"] for queue in answer["queues"]]


def test_a_pattern_names_all_that_match_and_no_others(api: Api, queue: str) -> None:
    for name in (f"{queue}-a", f"{queue}-b1", f"{queue}_x", f"other-{queue}-a"):
        push(api, name, 1)
    assert names(cut(api, f"{queue}-*")) == [f"{queue}-a", f"{queue}-b1"]
    assert names(cut(api, f"{queue}-?")) == [f"{queue}-a"]
    # Neither of these is special in a pattern, though it is in SQL.
    assert names(cut(api, f"{queue}_?")) == [f"{queue}_x"]
    assert names(cut(api, f"{queue}%")) == []
    assert names(cut(api, f"{queue}-a")) == [f"{queue}-a"]


def test_a_cut_of_what_is_not_there_yet_is_one(api: Api, queue: str) -> None:
    first = cut(api, f"{queue}-*")
    assert first["queues"] == []
    assert cut(api, f"{queue}-*", since=first["sealed"]) == first
    push(api, f"{queue}-a", 1)
    second = cut(api, f"{queue}-*", since=first["sealed"])
    assert second["sealed"] > first["sealed"]
    since = dict.fromkeys(names(second), first["sealed"])
    assert read(api, plan(api, since, second["sealed"])) == [b"1"]


def test_a_new_queue_that_is_empty_changes_nothing(api: Api, queue: str) -> None:
    push(api, f"{queue}-a", 1)
    first = cut(api, f"{queue}-*")
    assert api.configure(f"{queue}-b").status == 201
    second = cut(api, f"{queue}-*", since=first["sealed"])
    assert second["sealed"] == first["sealed"]
    assert names(second) == [f"{queue}-a", f"{queue}-b"]


def test_names_or_a_pattern_and_not_both(api: Api, queue: str) -> None:
    for body in ({}, {"queues": [queue], "pattern": "x*"}, {"pattern": ""}):
        assert api.call("POST", f"{ROOT}/cut", body).status == 400


async def test_more_queues_than_can_be_read_are_refused(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "insert into queen.queues (name) select $1 || n from generate_series(1, 1001) n", queue
    )
    answer = api.call("POST", f"{ROOT}/cut", {"pattern": f"{queue}*"})
    await connection.execute("delete from queen.queues where starts_with(name, $1)", queue)
    assert answer.status == 400
    assert "1001 queues match" in answer.json["error"]


def test_a_queue_that_is_gone_is_left_out_where_that_is_asked_for(api: Api, queue: str) -> None:
    push(api, f"{queue}-a", 1)
    push(api, f"{queue}-b", 2)
    at = cut(api, f"{queue}-*")
    planned = plan(api, dict.fromkeys(names(at), 0), at["sealed"])
    assert api.call("DELETE", f"/api/v1/resources/queues/{queue}-b").status == 200
    sources = [{"queue": name, "since": 0} for name in names(at)]
    body = {"sources": sources, "until": at["sealed"]}
    assert api.call("POST", f"{ROOT}/plan", body).status == 404
    answer = api.call("POST", f"{ROOT}/plan", {**body, "existing": True})
    assert read(api, answer.json) == [b"1"]
    ranges = [part for planned_slice in planned["slices"] for part in planned_slice["ranges"]]
    assert api.call("POST", f"{ROOT}/slice", {"ranges": ranges}).status == 404
    assert api.call("POST", f"{ROOT}/slice", {"ranges": ranges, "existing": True}).status == 200
    assert progress(api, "report", at["sealed"], 0, *names(at)).status == 404
    places = [{"queue": name} for name in names(at)]
    told = {"group": "report", "sources": places, "doneUntil": at["sealed"], "existing": True}
    answer = api.call("POST", f"{ROOT}/progress", told)
    assert [place["queue"] for place in answer.json["queues"]] == [f"{queue}-a"]


def test_a_queue_under_the_name_of_another_is_not_taken_for_it(
    api: Api, other_api: Api, queue: str
) -> None:
    """A server that remembers the old one reads the new one all the same."""
    name = f"{queue}-a"
    push(api, name, 1)
    first = cut(api, f"{queue}-*")
    # Now the second server remembers it too.
    assert read(other_api, plan(other_api, {name: 0}, first["sealed"])) == [b"1"]
    assert api.call("DELETE", f"/api/v1/resources/queues/{name}").status == 200
    push(api, name, 2)
    second = cut(other_api, f"{queue}-*", since=first["sealed"])
    since = {name: first["sealed"]}
    assert read(other_api, plan(other_api, since, second["sealed"], existing=True)) == [b"2"]


class Writer(threading.Thread):
    """Makes queues that match, and others, and pushes to them as quickly as it can."""

    def __init__(self, url: str, prefix: str, number: int) -> None:
        super().__init__()
        self._url = url
        self._prefix = f"{prefix}-{number}"
        self._random = random.Random(number)
        self.pushed: list[str] = []

    def run(self) -> None:
        with contextlib.closing(Api(self._url)) as api:
            for n in range(25):
                # Most of them are new: this is the moment that matters.
                which = self._random.randrange(n + 1) if self._random.random() < 0.3 else n
                value = f"{self._prefix}/{n}"
                push(api, f"{self._prefix}-{which}", value)
                push(api, f"not-{self._prefix}-{which}", "another")
                self.pushed.append(value)


def test_what_lies_between_cuts_is_everything_once(api: Api, queue: str) -> None:
    writers = [Writer(api.url, queue, number) for number in range(4)]
    for writer in writers:
        writer.start()
    at, received = 0, list[bytes]()
    is_over = False
    while not is_over:
        is_over = not any(writer.is_alive() for writer in writers)
        answer = cut(api, f"{queue}-*", since=at)
        since = dict.fromkeys(names(answer), at)
        if since:
            received += read(api, plan(api, since, answer["sealed"], existing=True))
        at = answer["sealed"]
    for writer in writers:
        writer.join()
    expected = sorted(f'"{value}"'.encode() for writer in writers for value in writer.pushed)
    assert sorted(received) == expected


# ---- the moment at which a queue is made ----

_CUT = "select sealed, queues from queen.cut_matching($1 || '%', null, null, 1000)"
_MAKE = "insert into queen.queues (name) values ($1) returning id, sealed_until"


async def test_a_cut_waits_for_a_queue_that_is_being_made(
    dsn: str, connection: asyncpg.Connection
) -> None:
    prefix = uuid.uuid4().hex
    other = await asyncpg.connect(dsn)
    try:
        making = connection.transaction()
        await making.start()
        made = await connection.fetchval(_MAKE, f"{prefix}-a")
        await other.execute("set lock_timeout = '100ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.fetchrow(_CUT, prefix)
        await making.commit()
        assert await other.fetchval(_CUT, prefix, column=1) == [made]
    finally:
        await other.close()


async def test_a_queue_that_is_made_after_a_cut_begins_behind_it(
    connection: asyncpg.Connection,
) -> None:
    """Whatever the clock says: here it is an hour behind what was sealed."""
    prefix = uuid.uuid4().hex
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(
            "insert into queen.queues (name, sealed_until)"
            " values ($1, clock_timestamp() + interval '1 hour')",
            f"{prefix}-a",
        )
        at = await connection.fetchval(_CUT, prefix)
        assert await connection.fetchval(_MAKE, f"{prefix}-b", column=1) >= at
    finally:
        await transaction.rollback()

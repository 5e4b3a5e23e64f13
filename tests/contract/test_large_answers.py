"""Answers that are too large to be made in one go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import asyncpg

from queen.core.frame import encode_frame
from tests.api import Api, pop_path
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect
from tests.contract.rawhttp import RawConnection, request

StartServer = Callable[..., ServerProcess]


def push_texts(api: Api, queue: str, count: int, size: int, partition: str = "p") -> list[str]:
    """Push texts that compress well, as frames."""
    texts = [f"{n} ".ljust(size, "x") for n in range(count)]
    payloads = [json.dumps(text).encode() for text in texts]
    step = max(1, 16_000_000 // size)
    for first in range(0, count, step):
        ids = [f"{partition}-{n}" for n in range(first, min(count, first + step))]
        frame = encode_frame(queue, partition, ids, payloads[first : first + step])
        assert api.push_frames(frame).status == 201
    return texts


def test_a_small_answer_has_its_length_ahead(raw: RawConnection, api: Api, queue: str) -> None:
    texts = push_texts(api, queue, 20, 10_000)
    raw.send(request("GET", pop_path(queue, batch=20)))
    answer = raw.answer()
    assert "transfer-encoding" not in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert [one["data"] for one in answer.json["messages"]] == texts


def test_a_large_pop_comes_in_parts(raw: RawConnection, api: Api, queue: str) -> None:
    texts = push_texts(api, queue, 40, 100_000)
    raw.send(request("GET", pop_path(queue, batch=40)) + request("GET", "/health/live"))
    answer = raw.answer()
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["content-type"] == "application/json"
    assert [one["data"] for one in answer.json["messages"]] == texts
    assert [one["offset"] for one in answer.json["messages"]] == list(range(40))
    assert answer.json["partitionsClaimed"] == 1
    # The connection serves on.
    assert raw.answer().status == 200


def test_a_large_message_is_cut_into_parts(raw: RawConnection, api: Api, queue: str) -> None:
    (text,) = push_texts(api, queue, 1, 10_000_000)
    raw.send(request("GET", pop_path(queue)))
    assert [one["data"] for one in raw.answer().json["messages"]] == [text]


def test_a_large_pop_over_http_1_0_ends_with_the_connection(
    raw: RawConnection, api: Api, queue: str
) -> None:
    texts = push_texts(api, queue, 40, 100_000)
    raw.send(request("GET", pop_path(queue, batch=40), version="1.0"))
    answer = raw.answer()
    assert "transfer-encoding" not in answer.headers
    assert [one["data"] for one in answer.json["messages"]] == texts


def test_a_pop_that_nobody_reads_to_its_end_is_given_back(
    raw: RawConnection, api: Api, queue: str
) -> None:
    push_texts(api, queue, 160, 100_000)
    with RawConnection(api.url) as greedy:
        greedy.send(request("GET", pop_path(queue, batch=160)))
        assert greedy.is_readable(30)
        assert api.pop(queue).status == 204
    raw.send(request("GET", pop_path(queue, batch=1, wait="true", timeout=20_000)))
    assert [one["offset"] for one in raw.answer().json["messages"]] == [0]


async def damage_last(connection: asyncpg.Connection, queue: str) -> None:
    """Make the last segment of a queue unreadable."""
    await connection.execute(
        """
        update queen.segments s set codec = 1, body = 'damaged'
        from (select g.partition_id, g.base_offset
              from queen.segments g join queen.queues q on q.id = g.queue_id
              where q.name = $1 order by g.base_offset desc limit 1) l
        where s.partition_id = l.partition_id and s.base_offset = l.base_offset
        """,
        queue,
    )


async def test_an_answer_that_breaks_in_the_middle_ends_its_connection(
    start_server: StartServer,
    connect: Connect,
    dsn: str,
    queue: str,
    connection: asyncpg.Connection,
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    running = start_server("--database-url", dsn, log=log)
    api = connect(running)
    # More than a page, so that the answer has begun.
    for n in range(300):
        frame = encode_frame(queue, "p", [f"t{n}"], [b"1"])
        assert api.push_frames(frame).status == 201
    await damage_last(connection, queue)
    with RawConnection(running.url, timeout_s=10) as raw:
        raw.send(request("GET", f"/api/v1/fetch/queue/{queue}") + request("GET", "/health/live"))
        received = raw.everything()
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    # Neither an end nor another answer: the client knows that it has only a part.
    assert b"HTTP/1.1" not in body
    assert not body.endswith(b"0\r\n\r\n")
    logged = log.read_text().splitlines()[-1]
    assert "offset 299 of partition" in logged and "cannot be read" in logged
    assert api.call("GET", "/health/live").status == 200

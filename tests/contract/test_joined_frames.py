"""Joined frames: whoever asks for them reads what everybody else reads, in the same order."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from queen.core.frame import CONTENT_TYPE, JOINED_VERSION, Frame, stored_frames
from queen.wire.frames.joined_frame import (
    ACCEPT_ANY_ORDER,
    ACCEPT_JOINED,
    JoinedFrame,
    received_frames,
)
from tests.api import Answer, Api
from tests.contract.test_dead_letters import retry
from tests.contract.test_messages import about
from tests.contract.test_sealed_reads import plan, sealed
from tests.frame_contents import told

PARTITIONS = ("a", "b", "ü")
ROOT = "/api/v1/fetch"


def push(api: Api, queue: str, partition: str, *payloads: Any, **more: Any) -> list[Any]:
    items = [{"queue": queue, "partition": partition, "payload": one, **more} for one in payloads]
    answer = api.push(*items)
    assert answer.status == 201, answer.raw
    return list(answer.json)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def mixed(api: Api, queue: str, request: pytest.FixtureRequest) -> str:
    """A queue of small segments, with everything among them that is not as usual."""
    api.configure(queue, encryptionEnabled=request.param, retryLimit=0, retryDelay=0)
    for number in range(12):
        for partition in PARTITIONS:
            push(api, queue, partition, {"n": number})
    push(api, queue, "a", 1, 2, 3)
    push(api, queue, "b", {"traced": True}, traceId=str(uuid.uuid4()))
    # One that is compressed, and two that are large.
    push(api, queue, "a", "x" * 2000)
    push(api, queue, "a", "".join(uuid.uuid4().hex for _ in range(300)))
    push(api, queue, "b", "y" * 100_000)
    erased = push(api, queue, "ü", "erased", "kept")[0]
    assert about(api, erased, "DELETE").json["success"]
    (failed,) = api.messages(queue, "b", batch=1, consumerGroup="g", subscriptionMode="all")
    api.ack(failed, "failed")
    assert retry(api, queue=queue, consumerGroup="g") == 1
    for number in range(5):
        push(api, queue, "a", {"last": number})
    return queue


def ask(api: Api, path: str, *, joined: bool, body: Any = None) -> list[Frame]:
    accept = ACCEPT_JOINED if joined else "application/vnd.queen.segment"
    method = "GET" if body is None else "POST"
    answer: Answer = api.call(method, path, body, {"accept": accept})
    assert answer.status == 200, answer.raw
    return list(received_frames(answer.raw) if joined else stored_frames(answer.raw))


def check(api: Api, path: str, body: Any = None) -> int:
    """Return how many frames were sent to somebody who takes joined ones."""
    plain, joined = (ask(api, path, joined=joined, body=body) for joined in (False, True))
    assert told(joined) == told(plain)
    assert len(joined) <= len(plain)
    return len(joined)


def test_a_queue_is_read_the_same(api: Api, mixed: str) -> None:
    frames = ask(api, f"{ROOT}/queue/{mixed}", joined=True)
    # Two large segments stand between the small ones.
    assert [type(frame) for frame in frames] == [JoinedFrame, Frame, Frame, JoinedFrame]
    assert check(api, f"{ROOT}/queue/{mixed}") == 4


def test_lone_messages_are_read_the_same(api: Api, queue: str) -> None:
    for number in range(300):
        push(api, queue, PARTITIONS[number % 3], {"n": number})
    assert check(api, f"{ROOT}/queue/{queue}") == 1
    assert check(api, f"{ROOT}/queue/{queue}/partition/b?fromOffset=10&toOffset=90") == 1


def test_a_partition_is_read_the_same(api: Api, mixed: str) -> None:
    path = f"{ROOT}/queue/{mixed}/partition/a"
    assert check(api, path) == 3
    for low, high in ((0, 5), (3, 4), (11, 14), (13, 17), (16, 100), (100, 200)):
        check(api, f"{path}?fromOffset={low}&toOffset={high}")


def test_times_are_those_of_each_segment(api: Api, mixed: str) -> None:
    frames = ask(api, f"{ROOT}/queue/{mixed}", joined=True)
    times = sorted({message.created_at_us for message in told(frames)})
    assert len(times) > 40
    for first, last in zip(times[::7], times[3::7], strict=False):
        check(api, f"{ROOT}/queue/{mixed}?fromTime={_text(first)}&toTime={_text(last)}")
        check(api, f"{ROOT}/queue/{mixed}/partition/a?fromTime={_text(first)}")


def _text(at_us: int) -> str:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@pytest.mark.parametrize("slices", [1, 7])
def test_slices_are_read_the_same(api: Api, mixed: str, slices: int) -> None:
    until = sealed(api, mixed)
    for more in ({}, {"partitions": ["a", "b"], "fromOffset": 2, "toOffset": 15}):
        planned = plan(api, {mixed: 0}, until, slices=slices, **more)
        for part in planned["slices"]:
            check(api, f"{ROOT}/slice", {"ranges": part["ranges"]})


async def test_a_segment_that_is_damaged_does_no_harm_to_its_neighbours(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for number in range(6):
        push(api, queue, "p", {"n": number})
    await connection.execute(
        "update queen.segments set body = substr(body, 1, 20) where base_offset = 2"
        " and queue_id = (select id from queen.queues where name = $1)",
        queue,
    )
    first, damaged, last = ask(api, f"{ROOT}/queue/{queue}", joined=True)
    assert [(frame.base_offset, frame.count) for frame in (first, damaged, last)] == [
        (0, 2),
        (2, 1),
        (3, 3),
    ]
    assert [one.payload for one in told([first, last])] == [
        b'{"n": %d}' % number for number in (0, 1, 3, 4, 5)
    ]


@pytest.mark.parametrize("body", [b"", bytes(40)], ids=["empty", "zeros"])
async def test_a_body_that_does_not_say_its_size_is_named(
    api: Api, queue: str, connection: asyncpg.Connection, body: bytes
) -> None:
    for number in range(4):
        push(api, queue, "p", {"n": number})
    await connection.execute(
        "update queen.segments set codec = 1, body = $2 where base_offset = 2"
        " and queue_id = (select id from queen.queues where name = $1)",
        queue,
        body,
    )
    for accept in (CONTENT_TYPE, ACCEPT_JOINED, ACCEPT_ANY_ORDER):
        answer = api.call("GET", f"{ROOT}/queue/{queue}", None, {"accept": accept})
        assert (answer.status, answer.json["code"]) == (503, "unreadable")
        assert "offset 2 of partition" in answer.json["error"]
    path = f"{ROOT}/queue/{queue}/partition/p?toOffset=2"
    assert [one.offset for one in told(ask(api, path, joined=True))] == [0, 1]


def test_joined_frames_are_not_pushed(api: Api, queue: str) -> None:
    for number in range(3):
        push(api, queue, "p", number)
    answer = api.call("GET", f"{ROOT}/queue/{queue}", None, {"accept": ACCEPT_JOINED})
    (frame,) = received_frames(answer.raw)
    assert isinstance(frame, JoinedFrame)
    refused = api.push_frames(answer.raw)
    assert refused.status == 400
    assert f"version {JOINED_VERSION} is not known" in refused.raw.decode()

"""Data of every kind, names of every kind, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.errors import BadRequest, Conflict, QueenError
from queen.streambroker import Capability, StreamBroker
from queen.streambroker.commands import CommandStreamBroker
from queen.streambroker.entry_data import entry_data, fields_of, split_origin, with_origin
from tests.streambroker.test_originals import group_info, ids_of

Name = Callable[[str], str]

KINDS: list[Any] = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    1.5,
    -1e300,
    "",
    "text",
    "null",
    '{"a": 1}',
    "ünïcödé 😀 \x00 \u2028",
    [],
    [1, [2, [3]], None],
    {},
    {"data": {"data": []}},
    {"": "", "a:b": {"ü": 1}},
]


@pytest.mark.parametrize("data", KINDS, ids=repr)
async def test_data_of_every_kind_comes_back(broker: StreamBroker, stream: str, data: Any) -> None:
    await broker.create_group(stream, "g")
    await broker.xadd(stream, data)
    (read,) = await broker.xreadgroup("g", "c", stream)
    (pending,) = await broker.xpending(stream, "g")
    (claimed,) = await broker.xautoclaim(stream, "g", "c", 0)
    (ranged,) = await broker.xrange(stream)
    for message in (read, pending, claimed, ranged):
        assert message.data == data
        assert type(message.data) is type(data)


async def test_large_data_comes_back(broker: StreamBroker, stream: str) -> None:
    data = {"text": "ü" * 3_000_000, "list": list(range(100_000))}
    await broker.create_group(stream, "g")
    await broker.xadd(stream, data)
    (message,) = await broker.xreadgroup("g", "c", stream)
    assert message.data == data


@pytest.mark.parametrize("data", [float("nan"), [float("inf")], object(), {1, object()}])
async def test_what_is_no_json_is_refused(broker: StreamBroker, stream: str, data: Any) -> None:
    with pytest.raises(BadRequest, match="JSON"):
        await broker.xadd(stream, data)
    assert await broker.xlen(stream) == 0


ODD_NAMES = ["a b", "a:b", "{a}", "ü😀", "\u202e", "a\x00b", "a\r\nb", "*", "-", "$", "x" * 300]


@pytest.mark.parametrize("odd", ODD_NAMES, ids=ascii)
async def test_names_may_be_odd(broker: StreamBroker, name: Name, odd: str) -> None:
    stream = name(odd)
    if not (Capability.ANY_NAME in broker.capabilities or (odd.isprintable() and len(odd) < 200)):
        with pytest.raises(BadRequest, match="name"):
            await broker.create_group(stream, odd)
        return
    await broker.create_group(stream, odd)
    entry_id = await broker.xadd(stream, 1)
    assert ids_of(await broker.xreadgroup(odd, odd, stream)) == [entry_id]
    (pending,) = await broker.xpending(stream, odd, odd)
    assert pending.consumer == odd
    info = await group_info(broker, stream, odd)
    assert (info.name, info.consumers[0].name) == (odd, odd)
    assert stream in await broker.scan_streams(f"*{stream[-8:]}")
    assert await broker.delete_consumer(stream, odd, odd) == 1


def test_entries_that_others_wrote_are_shown() -> None:
    assert entry_data([b"a", b"1", b"b", "ü".encode()]) == {"a": "1", "b": "ü"}
    assert entry_data([b"data", b"not json"]) == {"data": "not json"}
    assert entry_data([b"data", b"5"]) == 5
    assert entry_data([b"data", b"5", b"more", b"6"]) == {"data": "5", "more": "6"}
    assert entry_data([b"a", b"1", b"a", b"2"]) == {"fields": [["a", "1"], ["a", "2"]]}
    assert entry_data([b"a", b"\xff"]) == {"fields": [["a", {"base64": "/w=="}]]}
    assert entry_data([b"\xff", b"x"]) == {"fields": [[{"base64": "/w=="}, "x"]]}
    assert entry_data([b"data", b"\xff"]) == {"fields": [["data", {"base64": "/w=="}]]}


@given(
    st.lists(st.tuples(st.binary(), st.binary())).map(
        lambda pairs: [part for pair in pairs for part in pair]
    )
)
def test_any_entry_is_shown_and_its_origin_is_told_apart(fields: list[bytes]) -> None:
    entry_data(fields)
    own_fields, origin = split_origin(with_origin(fields, b"s", b"g", b"1-2", 3))
    assert list(own_fields) == fields
    assert origin is not None
    assert (origin.stream, origin.group, origin.id, origin.deliveries) == ("s", "g", "1-2", 3)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_any_json_is_shown_as_it_was(data: Any) -> None:
    assert entry_data(fields_of(data)) == data


async def test_entries_that_others_wrote_are_delivered(broker: StreamBroker, stream: str) -> None:
    if not isinstance(broker, CommandStreamBroker):
        pytest.skip("runs no commands")
    await broker.create_group(stream, "g")
    key = stream.encode()
    commands = [
        [b"XADD", key, b"1-1", b"user", b"ann", b"n", b"1"],
        [b"XADD", key, b"1-2", b"a", b"1", b"a", b"\xfe"],
    ]
    await broker.executor.execute(commands)
    messages = await broker.xreadgroup("g", "c", stream, 5)
    assert [message.data for message in messages] == [
        {"user": "ann", "n": "1"},
        {"fields": [["a", "1"], ["a", {"base64": "/g=="}]]},
    ]
    assert [message.timestamp for message in messages] == [0.001, 0.001]


async def test_what_is_no_stream_is_a_conflict(broker: StreamBroker, stream: str) -> None:
    if not isinstance(broker, CommandStreamBroker):
        pytest.skip("runs no commands")
    (reply,) = await broker.executor.execute([(b"SET", stream.encode(), b"text")])
    if isinstance(reply, Exception):
        pytest.skip("has nothing but streams")
    calls = [
        broker.xadd(stream, 1),
        broker.xlen(stream),
        broker.create_group(stream, "g"),
        broker.get_group_info(stream),
        broker.xreadgroup("g", "c", stream),
        broker.xautoclaim(stream, "g", "c", 0),
    ]
    for call in calls:
        with pytest.raises(Conflict, match="WRONGTYPE"):
            await call


Call = Callable[[StreamBroker], Coroutine[Any, Any, object]]

REFUSED: list[tuple[str, Call]] = [
    ("stream must not be empty", lambda broker: broker.xadd("", 1)),
    ("stream must be a text", lambda broker: broker.xlen(5)),  # type: ignore[arg-type]
    ("UTF-8", lambda broker: broker.xlen("\ud800")),
    ("group must not be empty", lambda broker: broker.create_group("s", "")),
    ("consumer must not be empty", lambda broker: broker.xreadgroup("g", "", "s")),
    ("stands for nobody", lambda broker: broker.xreadgroup("g", "queen:released", "s")),
    ("key must not be empty", lambda broker: broker.xadd("s", 1, key="")),
    ("max_length must be from 1", lambda broker: broker.xadd("s", 1, max_length=0)),
    ("max_length must be from 0", lambda broker: broker.xtrim("s", -1)),
    ("count must be from 0", lambda broker: broker.xreadgroup("g", "c", "s", -1)),
    ("count must be a whole", lambda broker: broker.xrange("s", count=True)),
    ("count must be a whole", lambda broker: broker.xrange("s", count=1.5)),  # type: ignore[arg-type]
    ("block_ms must be from 0", lambda broker: broker.xreadgroup("g", "c", "s", 1, -1)),
    ("block_ms must be from 0", lambda broker: broker.xreadgroup("g", "c", "s", 1, 10**12)),
    ("claim_idle_ms", lambda broker: broker.xreadgroup("g", "c", "s", claim_idle_ms=-1)),
    ("min_idle_ms", lambda broker: broker.xautoclaim("s", "g", "c", -1)),
    ("delay_ms", lambda broker: broker.nack("s", "g", ["1-1"], -1)),
    ("limit must be from 1", lambda broker: broker.set_delivery_limit("s", "g", 0)),
    ("ids must be a list", lambda broker: broker.xack("s", "g", "1-1")),
    ("id must be like", lambda broker: broker.xack("s", "g", ["1-1", "x"])),
    ("id must be a text", lambda broker: broker.xdel("s", [1])),  # type: ignore[list-item]
    ("id must be like", lambda broker: broker.xdel("s", ["$"])),
    ("min_id must be like", lambda broker: broker.xrange("s", "((1")),
    ("max_id must be like", lambda broker: broker.xrange("s", "-", "\u0661")),
    ("history_after", lambda broker: broker.xreadgroup("g", "c", "s", history_after=">")),
    ("pattern must not be empty", lambda broker: broker.scan_streams("")),
]


@pytest.mark.parametrize(("reason", "call"), REFUSED, ids=[reason for reason, _ in REFUSED])
async def test_what_cannot_be_meant_is_refused(
    broker: StreamBroker, reason: str, call: Call
) -> None:
    with pytest.raises(QueenError, match=reason) as refused:
        await call(broker)
    assert isinstance(refused.value, BadRequest)


async def test_nothing_to_do_is_nothing(broker: StreamBroker, stream: str) -> None:
    assert await broker.xack(stream, "g", []) == 0
    assert await broker.nack(stream, "g", []) == 0
    assert await broker.xdel(stream, []) == 0
    assert await broker.xclaim(stream, "g", "c", 0, []) == []

"""What a window computes, held against plain Python."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen import Queen, Window
from queen.client.camel_case import snake
from queen.client.durations import seconds_of, told_ms
from queen.client.streams.fields import value_at
from queen.client.streams.messages import Leased, Range, WindowMessage

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOBODY = Queen("http://127.0.0.1:1")


def message(data: Any, offset: int = 0, queue: str = "clicks") -> WindowMessage:
    return WindowMessage(
        id=f"{queue}-{offset}",
        transaction_id=f"t{offset}",
        created_at=NOON + timedelta(seconds=offset),
        queue=queue,
        partition="p",
        offset=offset,
        raw=msgspec.Raw(msgspec.json.encode(data)),
    )


def window_of(*payloads: Any, **fields: Any) -> Window:
    messages = [message(one, number) for number, one in enumerate(payloads)]
    return window_with(messages, **fields)


def window_with(messages: Any, *, into: Any = None, **fields: Any) -> Window:
    leased = Leased(
        id="s:p:0:60",
        lease_id="lease",
        key="p",
        start=NOON,
        end=NOON + timedelta(minutes=1),
        messages=messages,
        ranges=[Range("clicks", "p", 0, 10)],
        **fields,
    )
    return Window(leased, NOBODY, into=into)


# Whatever a payload may have in a field: nothing, null, and all that JSON has.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.sampled_from(["", "a", "b", "7", "null_key"])
)
values = scalars | st.lists(scalars, max_size=2) | st.dictionaries(st.sampled_from("xy"), scalars)
payloads = st.lists(
    st.fixed_dictionaries({}, optional={"v": values}) | scalars | st.lists(scalars, max_size=1),
    max_size=12,
)


def present(payloads: list[Any]) -> list[Any]:
    found = [one["v"] for one in payloads if isinstance(one, dict) and "v" in one]
    return [value for value in found if value is not None]


def numbers(payloads: list[Any]) -> list[float]:
    return [value for value in present(payloads) if type(value) in (int, float)]


# ---- aggregates ----


@given(payloads)
def test_aggregates_are_those_of_plain_python(payloads: list[Any]) -> None:
    known = numbers(payloads)
    found = window_of(*payloads).aggregate(
        count=True, sum=["data.v"], avg=["data.v"], min=["data.v"], max=["data.v"]
    )
    assert found["count"] == len(payloads)
    exact = sum(map(Fraction, known), Fraction())
    assert found["sum"]["data.v"] == float(exact)
    assert found["min"]["data.v"] == min(known, default=None)
    assert found["max"]["data.v"] == max(known, default=None)
    if known:
        assert found["avg"]["data.v"] == pytest.approx(statistics.fmean(known))
    else:
        assert found["avg"]["data.v"] is None


@given(payloads, st.integers(0, 100) | st.sampled_from(["99.9", "0.1", "33.3"]))
def test_a_percentile_is_the_nearest_rank(payloads: list[Any], percent: int | str) -> None:
    known = sorted(numbers(payloads))
    found = window_of(*payloads).aggregate({f"p{percent}": ["data.v"]})[f"p{percent}"]["data.v"]
    if not known:
        assert found is None
        return
    # By its definition: the smallest value that so many percent of the values do not exceed.
    needed = Fraction(str(percent)) / 100 * len(known)
    assert found in known
    assert sum(value <= found for value in known) >= needed
    smaller = [value for value in known if value < found]
    assert not smaller or sum(value <= smaller[-1] for value in known) < needed


@given(payloads)
def test_distinct_counts_different_values(payloads: list[Any]) -> None:
    different = {(type(value), as_key(value)) for value in present(payloads)}
    # 1 and 1.0 are the same number.
    known = set(numbers(payloads))
    others = {one for one in different if one[0] not in (int, float)}
    found = window_of(*payloads).aggregate(distinct="data.v")["distinct"]["data.v"]
    assert found == len(known) + len(others)


def test_sums_are_exact_or_rounded_once() -> None:
    assert window_of(*[{"v": 0.1}] * 10).aggregate(sum="data.v")["sum"]["data.v"] == 1.0
    large = window_of({"v": 10**30}, {"v": 1}).aggregate(sum="data.v", avg="data.v")
    assert large["sum"]["data.v"] == 10**30 + 1
    assert large["avg"]["data.v"] == (10**30 + 1) / 2
    there_and_back = window_of({"v": 1e308}, {"v": 1e308}, {"v": -1e308})
    assert there_and_back.aggregate(sum="data.v")["sum"]["data.v"] == 1e308
    over = window_of({"v": 1e308}, {"v": 1e308}).aggregate(sum="data.v", avg="data.v")
    assert over == {"sum": {"data.v": math.inf}, "avg": {"data.v": 1e308}}


def test_95_percent_of_twenty_is_nineteen() -> None:
    twenty = window_of(*({"v": n} for n in range(1, 21)))
    found = twenty.aggregate(p50=["data.v"], p95=["data.v"], p99=["data.v"], p100=["data.v"])
    assert [one["data.v"] for one in found.values()] == [10, 19, 20, 20]


def test_an_aggregate_that_is_none_is_named() -> None:
    for name in ("median", "p101", "p", "px"):
        with pytest.raises(ValueError, match="is no aggregate"):
            window_of().aggregate({name: ["data.v"]})


def test_the_dict_of_the_other_client_and_an_empty_window() -> None:
    spec = {"count": True, "sum": ["payload.amount"], "max": ["payload.amount"]}
    assert window_of({"amount": 2}, {"amount": "3"}, {}).aggregate(spec) == {
        "count": 3,
        "sum": {"payload.amount": 2},
        "max": {"payload.amount": 2},
    }
    assert window_of().aggregate(spec) == {
        "count": 0,
        "sum": {"payload.amount": 0},
        "max": {"payload.amount": None},
    }
    assert window_of({}).aggregate(count=False) == {}


# ---- groups ----


@given(payloads)
def test_groups_are_those_of_plain_python(payloads: list[Any]) -> None:
    expected: dict[Any, list[int]] = defaultdict(list)
    for number, one in enumerate(payloads):
        value = one.get("v") if isinstance(one, dict) else None
        expected[as_key(value)].append(number)
    found = window_of(*payloads).group_by("data.v", null_key=None)
    assert {key: [one.offset for one in group] for key, group in found.items()} == expected


def as_key(value: Any) -> Any:
    if not isinstance(value, dict | list):
        return value
    return msgspec.json.encode(value, order="sorted").decode()


def test_what_has_no_value_is_under_null_key_and_zero_is_a_value() -> None:
    window = window_of({"v": 0}, {"v": ""}, {"v": False}, {"v": None}, {}, 7)
    groups = {key: len(group) for key, group in window.group_by("data.v").items()}
    # False is 0 to Python.
    assert groups == {0: 2, "": 1, "null_key": 3}


def test_7_and_its_text_are_two_groups() -> None:
    assert list(window_of({"v": 7}, {"v": "7"}).group_by("data.v")) == [7, "7"]


def test_a_function_can_group() -> None:
    window = window_of({"v": 1}, {"v": 2}, {"v": 3})
    groups = window.group_by(lambda one: one.data["v"] % 2)
    assert {key: len(group) for key, group in groups.items()} == {1: 2, 0: 1}


# ---- joins ----

rows = st.lists(st.fixed_dictionaries({}, optional={"k": scalars}), max_size=8)


@given(rows, rows, st.sampled_from(["inner", "left"]))
def test_joins_are_nested_loops(lefts: list[Any], rights: list[Any], how: Any) -> None:
    window = window_with(
        [message(one, number, "left") for number, one in enumerate(lefts)]
        + [message(one, number, "right") for number, one in enumerate(rights)]
    )
    expected: list[tuple[int, int | None]] = []
    for number, left in enumerate(lefts):
        matches = [at for at, right in enumerate(rights) if same(left.get("k"), right.get("k"))]
        expected += [(number, at) for at in matches]
        if how == "left" and not matches:
            expected.append((number, None))
    found = window.join("left", "right", on="data.k", how=how)
    assert [(one.left.offset, one.right and one.right.offset) for one in found] == expected


def same(one: Any, other: Any) -> bool:
    if one is None or other is None or isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool(one == other)


def test_a_join_by_two_fields_and_of_what_is_left() -> None:
    window = window_with(
        [message({"id": 1}, 0, "orders"), message({"order": 1, "ok": True}, 0, "payments")]
    )
    ((key, left, right),) = window.join("orders", "payments", on=("data.id", "data.order"))
    assert right is not None
    assert (key, left.data, right.data["ok"]) == (1, {"id": 1}, True)
    window.filter(lambda one: one.queue == "orders")
    assert window.join("orders", "payments", on=("data.id", "data.order")) == []
    with pytest.raises(ValueError, match="inner"):
        window.join("orders", "payments", on="data.id", how="outer")  # type: ignore[arg-type]


# ---- the working copy ----


def test_filter_narrows_and_reset_restores() -> None:
    window = window_of(*({"n": n} for n in range(10)))
    all_before = window.all_messages
    assert window.filter(lambda one: one.data["n"] > 3).filter(lambda one: one.data["n"] < 8)
    assert [one.data["n"] for one in window.messages] == [4, 5, 6, 7]
    assert (window.size, window.original_size) == (4, 10)
    assert window.aggregate(count=True) == {"count": 4}
    window.messages.clear()
    assert window.all_messages is all_before
    assert window.reset().size == 10


def test_messages_answer_to_attributes_and_items() -> None:
    (one,) = window_of({"user": "u"}).all_messages
    assert one.data is one["data"] is one.payload is one["payload"]
    assert one["transactionId"] == one["transaction_id"] == one.transaction_id == "t0"
    assert one["created_at"] == one["createdAt"] == NOON
    assert (one["queue"], one["partition"], one["offset"], one["id"]) == (
        "clicks",
        "p",
        0,
        "clicks-0",
    )
    assert one["trace_id"] is one.trace_id is None
    with pytest.raises(KeyError, match="has no 'user'"):
        one["user"]
    with pytest.raises(AttributeError):
        one.offset = 7  # type: ignore[misc]


class Click(msgspec.Struct):
    user: str
    ms: int = 0


def test_payloads_are_decoded_to_a_type_and_paths_read_them_all_the_same() -> None:
    window = window_with([message({"user": "u", "ms": 7})], into=Click)
    assert window.messages[0].data == Click("u", 7)
    assert window.messages[0].into(dict) == {"user": "u", "ms": 7}
    assert window.aggregate(sum="data.ms")["sum"] == {"data.ms": 7}


def test_paths() -> None:
    one = message({"a": {"b": [1, {"c": 2}]}, "x": "text"})
    found = ["data.a.b.0", "data.a.b.1.c", "queue", "offset", "data.x"]
    assert [value_at(one, path) for path in found] == [1, 2, "clicks", 0, "text"]
    absent = ["data.a.z", "data.a.b.2", "data.a.b.-1", "data.x.upper", "data.x.0", "data.a.b.c"]
    assert {repr(value_at(one, path)) for path in absent} == {"ABSENT"}
    with pytest.raises(ValueError, match="begins with a field of the message"):
        value_at(one, "user")


def test_a_large_window_says_how_to_get_at_its_messages() -> None:
    window = window_with("ref", count=5)
    assert (window.is_loaded, window.count) == (False, 5)
    questions: list[Callable[[], object]] = [
        lambda: window.all_messages,
        lambda: window.messages,
        lambda: window.size,
        lambda: window.aggregate(count=True),
    ]
    for ask in questions:
        with pytest.raises(RuntimeError, match=r"load\(\)"):
            ask()


# ---- spelling and durations ----


def test_the_names_of_the_other_client_work_too() -> None:
    window: Any = window_of({"v": 1}, lease_timeout_ms=60_000)
    assert (window.leaseId, window.allMessages) == (window.lease_id, window.all_messages)
    assert window.originalSize == 1
    assert window.groupBy("data.v").keys() == {1}
    stream: Any = NOBODY.stream("s", "n")
    built = stream.sources(["a"]).tumblingTime(5).gracePeriod(1).leaseTimeout(2)._body(False)
    assert built["window_duration_ms"] == 5000
    consumer: Any = NOBODY.consumer("s", "g")
    assert consumer.pollWindow.__func__ is consumer.poll_window.__func__
    queue: Any = NOBODY.queue("q")
    assert queue.autoAck(False).renewLease(False)._auto_ack is False
    for thing in (window, stream, consumer, queue):
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = thing.noSuchThing
    with pytest.raises(AttributeError, match="'Window' object has no attribute 'nothing'"):
        _ = window.nothing


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tumblingTime", "tumbling_time"), ("leaseId", "lease_id"), ("p95", "p95"), ("a_b", "a_b")],
)
def test_snake(name: str, expected: str) -> None:
    assert snake(name) == expected


def test_durations() -> None:
    told = [told_ms("session", duration) for duration in (60, 0.25, timedelta(hours=1))]
    assert told == [60_000, 250, 3_600_000]
    assert seconds_of(timedelta(milliseconds=5)) == 0.005


# ---- definitions ----


def test_a_definition_says_what_was_set_and_nothing_else() -> None:
    stream = NOBODY.stream("visits", "shop")
    assert stream._body(False) == {"name": "visits", "namespace": "shop"}
    full = (
        stream.sources("clicks", ["buys", "views"])
        .partitioned()
        .sliding_time(60, slide=timedelta(seconds=10))
        .grace_period(5)
        .lease_timeout(30)
        .retry_limit(7)
        .retry_delay(0.5)
        .max_in_flight(3)
        .emit_empty()
    )
    assert full._body(True) == {
        "name": "visits",
        "namespace": "shop",
        "source_queue_names": ["clicks", "buys", "views"],
        "partitioned": True,
        "window_type": "sliding",
        "window_duration_ms": 60_000,
        "window_slide_ms": 10_000,
        "window_grace_period_ms": 5_000,
        "window_lease_timeout_ms": 30_000,
        "retry_limit": 7,
        "retry_delay_ms": 500,
        "max_in_flight": 3,
        "emit_empty": True,
        "recut": True,
    }
    assert stream._body(False) == {"name": "visits", "namespace": "shop"}


def test_the_last_kind_of_window_counts() -> None:
    stream = NOBODY.stream("s").tumbling_time(60)
    kinds = [stream, stream.session(1800), stream.count(100), stream.count(100, slide=10)]
    named = [{k: v for k, v in one._body(False).items() if "window" in k} for one in kinds]
    assert named == [
        {"window_type": "tumbling", "window_duration_ms": 60_000},
        {"window_type": "session", "window_gap_ms": 1_800_000},
        {"window_type": "count", "window_size_count": 100, "window_slide_count": None},
        {"window_type": "count", "window_size_count": 100, "window_slide_count": 10},
    ]

"""The verbs of the stream builder that say what Spark computes; Spark is not needed for them."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from queen import Queen
from queen.errors import BadRequest
from queen.wire.pipelines import decode_definition, reason_against


@pytest.fixture
def queen() -> Queen:
    return Queen("http://127.0.0.1:1")


def _orders(queen: Queen) -> Any:
    return queen.stream("orders-per-minute", "shop").sources("orders", "returns")


def test_what_is_said_is_what_is_stored(queen: Queen) -> None:
    stream = (
        _orders(queen)
        .schema("user string, amount double, ts timestamp")
        .where("data.amount > 0")
        .event_time("data.ts")
        .key("data.user", country="upper(data.country)")
        .sliding_time(timedelta(minutes=1), 20)
        .grace_period(5)
        .dedup("data.id")
        .aggregate(total="sum(data.amount)")
        .aggregate(n="count(*)")
        .distinct(items="data.item")
        .having("n > 1")
        .top(3, by="total", per=["country"])
        .late_to("late")
        .to("totals", partition="user")
    )
    definition = stream.definition()
    assert definition == {
        "name": "orders-per-minute",
        "namespace": "shop",
        "reads": [
            {
                "name": "orders_per_minute",
                "queues": ["orders", "returns"],
                "schema": "user string, amount double, ts timestamp",
                "where": ["data.amount > 0"],
                "eventTime": "data.ts",
            }
        ],
        "keys": {"user": "data.user", "country": "upper(data.country)"},
        "window": {"type": "sliding", "sizeMs": 60000, "slideMs": 20000},
        "graceMs": 5000,
        "dedup": ["data.id"],
        "aggregates": {"total": "sum(data.amount)", "n": "count(*)"},
        "distinct": {"items": "data.item"},
        "having": ["n > 1"],
        "top": {"count": 3, "by": "total", "per": ["country"]},
        "lateTo": "late",
        "output": {"queue": "totals", "partitionBy": "user"},
    }
    assert reason_against(decode_definition(definition)) is None


def test_a_builder_can_be_used_again(queen: Queen) -> None:
    base = _orders(queen).tumbling_time(60).aggregate(n="count(*)")
    first, second = base.to("a"), base.where("offset > 0").to("b")
    assert first.definition()["output"]["queue"] == "a"
    assert "where" not in first.definition()["reads"][0]
    assert second.definition()["reads"][0]["where"] == ["offset > 0"]
    assert not _orders(queen).tumbling_time(60).is_pipeline


def test_sides_of_a_join_are_builders_or_queues(queen: Queen) -> None:
    paid = queen.stream("paid").sources("payments").schema("order string").named("payment")
    stream = (
        _orders(queen)
        .named("bought")
        .join(paid, on={"data.id": "data.order"}, within=60, how="left")
        .join("user-clicks", on=["bought.partition"], within=1)
        .to("out")
    )
    definition = stream.definition()
    assert [side["name"] for side in definition["reads"]] == ["bought", "payment", "user_clicks"]
    assert definition["joins"][0]["on"] == [["data.id", "data.order"]]
    assert reason_against(decode_definition(definition)) is None


def test_partitions_are_keys_of_a_partitioned_stream(queen: Queen) -> None:
    stream = _orders(queen).partitioned().session(gap=30).aggregate(n="count(*)").to("out")
    assert stream.definition()["keys"] == {"partition": "partition"}
    assert stream.definition()["window"] == {"type": "session", "gapMs": 30000}


def test_an_expression_without_a_name_is_refused(queen: Queen) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        _orders(queen).key("lower(data.user)")


def test_the_verbs_load_no_spark() -> None:
    program = (
        "import sys, queen; queen.Queen('http://127.0.0.1:1').stream('x').aggregate(n='count(*)');"
        "sys.exit(any(one.startswith(('pyspark', 'pyarrow')) for one in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_side_of_a_join_has_nothing_to_compute() -> None:
    queen = Queen()
    left = queen.stream("left").sources("a")
    for right in (
        queen.stream("right").sources("b").dedup("data.id"),
        queen.stream("right").sources("b").tumbling_time(60),
        queen.stream("right").sources("b").join("c", on="data.id", within=1),
    ):
        with pytest.raises(ValueError, match="say the rest after the join"):
            left.join(right, on="data.id", within=1)
    having = left.having("n > 1").to("out").definition()
    assert "use where" in str(reason_against(decode_definition(having)))


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda s: s.on_error("ignore"), "on_error: 'ignore' is not known; .*'set_aside', 'fail'"),
        (lambda s: s.emit("append"), "emit: 'append' .*'closed', 'updates'"),
        (lambda s: s.to_files("results", "avro"), "to_files: 'avro' .*'parquet'"),
        (lambda s: s.join("b", on="data.id", within=1, how="outer"), "join, how: .*'full'"),
        (lambda s: s.calendar("hour"), "calendar: 'hour' .*'day', 'week', 'month'"),
        (lambda s: s.max_ahead(timedelta(days=367)), "max_ahead: a duration is at most 366 days"),
        (lambda s: s.tumbling_time(timedelta(days=367)), "tumbling_time: .* not 3.17088e"),
    ],
)
def test_what_a_verb_does_not_know_is_refused_in_its_words(
    queen: Queen, tell: Any, reason: str
) -> None:
    stream = _orders(queen).select("data").grace_period(0)
    assert stream.definition()["graceMs"] == 0
    with pytest.raises(BadRequest, match=reason):
        tell(stream).definition()


_NO_DURATION = "a duration is a millisecond or more, as a number of seconds or a timedelta"


@pytest.mark.parametrize(
    ("verb", "tell"),
    [
        ("tumbling_time", lambda s, size: s.tumbling_time(size)),
        ("sliding_time, size", lambda s, size: s.sliding_time(size, 1)),
        ("sliding_time, slide", lambda s, size: s.sliding_time(1, size)),
        ("session", lambda s, size: s.session(size)),
        ("max_ahead", lambda s, size: s.max_ahead(size)),
        ("join, within", lambda s, size: s.join("b", on="data.id", within=size)),
    ],
)
@pytest.mark.parametrize("size", [float("nan"), float("inf"), None, 0, -1, 1e-6, "5s", True])
def test_what_is_no_duration_is_refused_by_the_verb(
    queen: Queen, verb: str, tell: Any, size: Any
) -> None:
    with pytest.raises(BadRequest) as refused:
        tell(_orders(queen), size)
    assert str(refused.value) == f"{verb}: {_NO_DURATION}, and not {size!r}"


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda s: s.grace_period("5s"), "grace_period: a duration is 0 or more.* not '5s'"),
        (lambda s: s.grace_period(-1), "grace_period: a duration is 0 or more.* not -1"),
        (lambda s: s.where(""), "where: '' is no expression; write Spark SQL"),
        (lambda s: s.having("n > 1", " "), "having: ' ' is no expression"),
        (lambda s: s.event_time(5), "event_time: 5 is no expression"),
        (lambda s: s.schema(None), "schema: None"),
        (lambda s: s.aggregate(n=1), "aggregate, n: 1 is no expression"),
        (lambda s: s.key(user=""), "key, user: '' is no expression"),
        (lambda s: s.dedup(), "dedup: say what is equal"),
        (lambda s: s.dedup(""), "dedup: '' is no expression"),
        (lambda s: s.join("b", on=5, within=1), "join, on: 5 is neither an expression"),
        (lambda s: s.join("b", on=[], within=1), "join, on: .* is neither an expression"),
        (lambda s: s.join("b", on={"a": 5}, within=1), "join, on: 5 is no expression"),
        (lambda s: s.join(5, on="a", within=1), "join: 5 is neither a stream nor the name"),
        (lambda s: s.top(0, by="n"), "top: 0 is not a whole number from 1 to 10000"),
        (lambda s: s.top(1.5, by="n"), "top: 1.5 is not a whole number"),
        (lambda s: s.top(1, by=""), "top, by: '' is no expression"),
        (lambda s: s.time_zone("Mars/X"), "time_zone: 'Mars/X' is not known; one is like"),
        (lambda s: s.late_to(""), "late_to: ''"),
        (lambda s: s.to(""), "to: ''"),
        (lambda s: s.to_table("t", keys=5), "to_table, keys: 5 is not a list of names"),
        (lambda s: s.select("data.user", "other.User"), "select: two are called 'User'"),
        (lambda s: s.select("data.user", user="1"), "select: two are called 'user'"),
        (lambda s: s.aggregate(n="count(*)").aggregate(N="1"), "aggregate: two are called 'N'"),
        (lambda s: s.to("a").to("b"), "to: results go to the queue 'a' already"),
        (lambda s: s.to_files("a").to_table("b"), "to_table: results go to the folder 'a' already"),
    ],
)
def test_what_means_nothing_is_refused_by_the_verb(queen: Queen, tell: Any, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        tell(_orders(queen))


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda s: s.tumbling_time(1).daily(), "calendar: windows are cut by tumbling_time"),
        (lambda s: s.tumbling_time(1).tumbling_time(2), "tumbling_time: .* one kind of window"),
        (lambda s: s.count(5), "count: a pipeline cuts time"),
        (lambda s: s.lease_timeout(5), "lease_timeout: it is of windows that consumers lease"),
        (lambda s: s.retry_limit(0), "retry_limit: .* means nothing to a pipeline"),
        (lambda s: s.retry_delay(0), "retry_delay: .* means nothing to a pipeline"),
        (lambda s: s.max_in_flight(2), "max_in_flight: .* means nothing to a pipeline"),
        (lambda s: s.emit_empty(), "emit_empty: .* means nothing to a pipeline"),
    ],
)
def test_what_a_pipeline_would_pass_over_is_refused(queen: Queen, tell: Any, reason: str) -> None:
    stream = tell(_orders(queen).to("out"))
    with pytest.raises(BadRequest, match=reason):
        stream.definition()


def test_what_was_said_may_be_said_again(queen: Queen) -> None:
    stream = _orders(queen).tumbling_time(1).key("data.user").aggregate(n="count(*)").to("out")
    again = stream.tumbling_time(1).key("data.user").aggregate(n="count(*)").to("out")
    assert again.definition() == stream.definition()


def test_a_single_name_is_not_a_list_of_letters(queen: Queen) -> None:
    stream = _orders(queen).top(1, by="n", per="user").to_table("totals", keys="user")
    assert stream.definition()["top"]["per"] == ["user"]
    assert stream.definition()["output"]["tableKeys"] == ["user"]


def test_what_is_said_of_late_messages_where_none_can_be_is_refused(queen: Queen) -> None:
    stream = _orders(queen).select("data.user").to("out")
    for said, verb in (
        (stream.late_to("late"), "late_to"),
        (stream.max_ahead(60), "max_ahead"),
        (stream.grace_period(60), "grace_period"),
    ):
        reason = reason_against(decode_definition(said.definition()))
        assert reason is not None
        assert reason.endswith(f"nothing is late; leave {verb} out")
        timed = said.event_time("data.at").dedup("data.id")
        assert reason_against(decode_definition(timed.definition())) is None

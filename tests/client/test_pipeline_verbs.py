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
    with pytest.raises(ValueError, match="emit_empty"):
        left.emit_empty().where("true").definition()


@pytest.mark.parametrize(
    ("tell", "reason"),
    [
        (lambda s: s.on_error("ignore"), "on_error: 'ignore' is not known; .*'set_aside', 'fail'"),
        (lambda s: s.emit("append"), "emit: 'append' .*'closed', 'updates'"),
        (lambda s: s.to_files("results", "avro"), "to_files: 'avro' .*'parquet'"),
        (lambda s: s.join("b", on="data.id", within=1, how="outer"), "join, how: .*'full'"),
        (lambda s: s.calendar("hour"), "calendar: 'hour' .*'day', 'week', 'month'"),
        (lambda s: s.max_ahead(0), "max_ahead: a duration is a millisecond to 366 days.* 0 s"),
        (lambda s: s.max_ahead(timedelta(days=367)), "max_ahead: a duration"),
        (lambda s: s.join("b", on="data.id", within=-1), "join, within: a duration"),
        (lambda s: s.tumbling_time(timedelta(days=367)), "tumbling_time: a duration"),
        (lambda s: s.grace_period(-1), "grace_period: a duration is 0 to 366 days"),
    ],
)
def test_what_a_verb_does_not_know_is_refused_in_its_words(
    queen: Queen, tell: Any, reason: str
) -> None:
    stream = _orders(queen).select("data").tumbling_time(1).grace_period(0)
    assert stream.definition()["graceMs"] == 0
    with pytest.raises(BadRequest, match=reason):
        tell(stream).definition()


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

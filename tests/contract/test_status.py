"""Status and analytics: what happened, when, and what became of messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.api import Api, ack_of, push_of
from tests.contract.conftest import Park, age, refresh

_ROUTES = [
    "status",
    "status/queues",
    "status/analytics",
    "analytics/system-metrics",
    "analytics/worker-metrics",
    "analytics/queue-lag",
    "analytics/queue-ops",
    "analytics/queue-parked-replicas",
    "analytics/retention",
]


def _get(api: Api, path: str) -> Any:
    answer = api.call("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer
    return answer.json


def _until(look: Callable[[], Any], what: Callable[[Any], bool], within_s: float = 60) -> Any:
    """Ask until the answer is right: another server writes its numbers every few seconds."""
    deadline = time.monotonic() + within_s
    while not what(found := look()):
        assert time.monotonic() < deadline, found
    return found


def _sum(points: list[Any], *keys: str) -> tuple[int, ...]:
    return tuple(sum(point[key] for point in points) for key in keys)


def test_throughput_counts_what_was_done(api: Api, queue: str) -> None:
    api.push_many(queue, 10)
    popped = api.messages(queue, batch=4)
    api.ack_batch(popped)
    api.messages(queue, batch=3, consumerGroup="auto", autoAck="true")
    api.messages("nothing-" + queue)
    found = _until(
        lambda: _get(api, f"status?queue={queue}"),
        lambda one: _sum(one["throughput"], "processed") == (7,),
    )
    points = found["throughput"]
    assert _sum(points, "ingested", "processed", "popMessages") == (10, 7, 7)
    assert points[0]["ingestedPerSecond"] > 0
    assert found["bucketMinutes"] == 1 and found["pointCount"] == len(points)
    assert [one["name"] for one in found["queues"]] == [queue]
    assert found["messages"]["requests"] == 4 and found["messages"]["batchEfficiency"] == 10
    assert all(one["timestamp"].endswith("Z") for one in points)


def test_failures_show_as_errors_and_dead_letters(api: Api, queue: str) -> None:
    api.configure(queue, deadLetterQueue=True)
    api.push_many(queue, 2)
    one, two = api.messages(queue, batch=2)
    api.ack(one, "dlq", error="it broke")
    api.ack(two, "failed")
    found = _until(
        lambda: _get(api, f"status?queue={queue}"),
        lambda got: got["errors"]["ackFailed"] == 2 and got["deadLetterQueue"]["totalMessages"],
    )
    assert found["errors"]["dlqMessages"] == 1
    assert found["deadLetterQueue"] == {
        "totalMessages": 1,
        "affectedPartitions": 1,
        "topErrors": [{"error": "it broke", "count": 1}],
    }
    series = _get(api, f"status/analytics?queue={queue}&interval=minute")
    assert _sum(series["deadLetterQueue"]["timeSeries"], "count") == (1,)
    assert series["errorRates"]["overall"]["ratePercent"] == "100.00%"


def test_leases_are_counted(api: Api, queue: str) -> None:
    api.push_many(queue, 5)
    api.messages(queue, batch=3)
    api.messages(queue, batch=2, consumerGroup="other")
    # Groups and queues are counted together and read one after the other.
    found = _until(
        lambda: _get(api, f"status?queue={queue}")["leases"],
        lambda one: one["active"] == 2 and one["partitionsWithLeases"] == 1,
    )
    assert found == {
        "active": 2,
        "partitionsWithLeases": 1,
        "totalBatchSize": 5,
        "totalAcked": 0,
    }


def test_queues_come_by_priority_and_in_pages(api: Api, queue: str) -> None:
    for number in range(3):
        body = {
            "queue": f"{queue}-{number}",
            "namespace": queue,
            "options": {"priority": 5 if number == 2 else 0},
        }
        api.call("POST", "/api/v1/configure", body)
    found = _get(api, f"status/queues?namespace={queue}&limit=2")
    assert [one["name"] for one in found["queues"]] == [f"{queue}-2", f"{queue}-0"]
    assert found["queues"][0]["priority"] == 5
    assert found["pagination"] == {"limit": 2, "offset": 0, "total": 3}
    rest = _get(api, f"status/queues?namespace={queue}&limit=2&offset=2")
    assert [one["name"] for one in rest["queues"]] == [f"{queue}-1"]


def test_one_queue_in_detail(api: Api, queue: str) -> None:
    api.configure(queue, leaseTime=77, retryLimit=9, maxSize=1000, deadLetterQueue=True)
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(5)])
    api.messages(queue, autoAck="true")
    found = _until(
        lambda: _get(api, f"status/queues/{queue}?limit=4"),
        lambda one: one["totals"]["messages"]["completed"] == one["totals"]["batches"] == 1,
    )
    config = found["queue"]["config"]
    assert (config["leaseTime"], config["retryLimit"], config["maxQueueSize"]) == (77, 9, 1000)
    assert config["deadLetterQueue"] is True
    totals = found["totals"]
    # The partition that configuring makes is there too.
    assert (totals["total"], totals["pending"], totals["partitions"]) == (5, 4, 6)
    assert len(found["partitions"]) == 4 and found["pagination"]["total"] == 6
    assert found["partitions"][1]["messages"] == found["partitions"][1]["stats"]
    assert api.call("GET", f"/api/v1/status/queues/no-{queue}").status == 404


# ---- messages ----


def test_messages_come_newest_first_with_their_status(api: Api, queue: str) -> None:
    api.configure(queue, deadLetterQueue=True)
    ids = [*api.push_many(queue, 3), *api.push_many(queue, 2)]
    first, second, third = api.messages(queue, batch=3)
    api.ack(first)
    api.ack(second, "dlq")
    found = _get(api, f"status/queues/{queue}/messages")
    listed = {one["transactionId"]: one for one in found["messages"]}
    assert [one["transactionId"] for one in found["messages"]] == ids[::-1]
    assert [listed[one]["status"] for one in ids] == [
        "completed",
        "failed",
        "processing",
        "pending",
        "pending",
    ]
    assert listed[third["transactionId"]]["age"]["formatted"].endswith("s")
    assert listed[first["transactionId"]]["age"] is None
    assert listed[third["transactionId"]]["id"] == third["id"]
    only = _get(api, f"status/queues/{queue}/messages?status=failed")
    assert [one["transactionId"] for one in only["messages"]] == [second["transactionId"]]


def test_messages_in_pages(api: Api, queue: str) -> None:
    ids = []
    for size in (3, 1, 4, 1, 5):
        ids += api.push_many(queue, size)
    seen = []
    for offset in range(0, 14, 3):
        page = _get(api, f"status/queues/{queue}/messages?limit=3&offset={offset}")["messages"]
        seen += [one["transactionId"] for one in page]
    assert seen == ids[::-1]
    assert _get(api, f"status/queues/{queue}/messages?offset=14")["messages"] == []


def test_messages_of_one_partition(api: Api, queue: str) -> None:
    for number in range(3):
        api.push_many(queue, 2, "even" if number % 2 == 0 else "odd")
    found = _get(api, f"status/queues/{queue}/messages?partition=even&limit=3&offset=1")
    assert [one["offset"] for one in found["messages"]] == [2, 1, 0]
    assert {one["partition"] for one in found["messages"]} == {"even"}
    assert _get(api, f"status/queues/{queue}/messages?partition=none")["messages"] == []


async def test_only_messages_of_the_last_hour_unless_asked(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.push_many(queue, 2)
    await age(connection, queue, 7200)
    assert _get(api, f"status/queues/{queue}/messages")["messages"] == []
    since = quote((datetime.now(UTC) - timedelta(hours=3)).isoformat())
    assert len(_get(api, f"status/queues/{queue}/messages?from={since}")["messages"]) == 2


def test_a_group_that_has_done_all_completes_it(api: Api, queue: str) -> None:
    """Without queue mode every group must have done a message."""
    api.push_many(queue, 1)
    path = f"status/queues/{queue}/messages"
    api.messages(queue, consumerGroup="a", autoAck="true")
    assert _get(api, path)["messages"][0]["status"] == "completed"
    (taken,) = api.messages(queue, consumerGroup="b")
    assert _get(api, path)["messages"][0]["status"] == "processing"
    api.ack(taken)
    assert _get(api, path)["messages"][0]["status"] == "completed"


def test_encrypted_messages_are_listed_too(api: Api, queue: str) -> None:
    api.configure(queue, encryptionEnabled=True)
    (sent,) = api.push_many(queue, 1)
    (found,) = _get(api, f"status/queues/{queue}/messages")["messages"]
    assert found["transactionId"] == sent


# ---- series ----


def test_analytics_shows_both_shapes(api: Api, queue: str) -> None:
    api.push_many(queue, 4)
    api.messages(queue, batch=4, autoAck="true")
    found = _until(
        lambda: _get(api, f"status/analytics?queue={queue}&interval=day"),
        lambda one: one["throughput"]["totals"]["processed"] == 4,
    )
    assert _sum(found["dataPoints"], "messages") == (4,)
    assert found["interval"] == found["timeRange"]["interval"] == "day"
    assert found["from"] == found["timeRange"]["from"]
    assert found["throughput"]["totals"]["ingested"] == 4
    assert found["latency"]["overall"]["count"] == 4
    assert found["topQueues"][0]["name"] == queue
    assert found["queueDepths"]["current"] == {"pending": 0, "processing": 0}


def test_what_was_done_with_a_queue(api: Api, queue: str) -> None:
    api.push_many(queue, 3, "p")
    (popped,) = api.messages(queue)
    assert api.transaction(
        ack_of(popped), push_of({"queue": queue, "partition": "p", "payload": 1})
    ).json["success"]
    # The same id again is a duplicate.
    api.push({"queue": queue, "partition": "p", "payload": 1, "transactionId": "twice"})
    api.push({"queue": queue, "partition": "p", "payload": 1, "transactionId": "twice"})
    found = _until(
        lambda: _get(api, f"analytics/queue-ops?queue={queue}"),
        lambda one: _sum(one["series"], "pushMessages") == (5,),
    )
    series = found["series"]
    assert found["queues"] == [queue]
    keys = ("pushRequests", "popMessages", "ackSuccess", "transactions", "partitionsCreated")
    assert _sum(series, *keys) == (3, 1, 1, 1, 1)
    lag = _get(api, f"analytics/queue-lag?queue={queue}")
    assert _sum(lag, "popCount") == (1,)
    refresh(api)
    workers = _get(api, f"analytics/worker-metrics?queue={queue}")
    assert workers["summary"]["totalPushMessages"] == 5
    assert workers["queues"][0]["queueName"] == queue
    assert workers["summary"]["pendingMessages"] == 4


def test_an_empty_pop_is_counted_as_one(api: Api, queue: str) -> None:
    api.configure(queue)
    api.pop(queue)
    _until(
        lambda: _get(api, f"analytics/queue-ops?queue={queue}")["series"],
        lambda one: _sum(one, "popEmpty", "popMessages") == (1, 0),
    )


def test_parked_polls_show_where_they_are_parked(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    polls = [park(api, queue, timeout=20_000) for _ in range(3)]
    found = _until(
        lambda: _get(api, f"analytics/queue-parked-replicas?queue={queue}"),
        lambda one: any(point["parkedCount"] == 3 for point in one["series"]),
    )
    assert len(found["replicas"]) == 1 and found["replicas"][0]["workerId"] == 0
    assert not any(poll.is_answered() for poll in polls)


def test_both_servers_count(api: Api, other_api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    other_api.push_many(queue, 4)
    for one in (api, other_api):
        found = _until(
            lambda one=one: _get(one, f"status?queue={queue}"),  # type: ignore[misc]
            lambda got: _sum(got["throughput"], "ingested") == (7,),
        )
        assert len({worker["port"] for worker in found["workers"]}) >= 2


def test_servers_report_what_they_use(api: Api) -> None:
    found = _until(
        lambda: _get(api, "analytics/system-metrics"), lambda one: one["replicaCount"] >= 1
    )
    point = found["replicas"][0]["timeSeries"][0]
    assert point["sampleCount"] >= 1
    assert point["metrics"]["memory"]["rss_bytes"]["max"] > 10_000_000
    assert 0 <= point["metrics"]["database"]["pool_idle"]["min"] <= 8
    assert set(point["metrics"]["cpu"]["user_us"]) == {"avg", "min", "max", "last"}
    elsewhere = _get(api, "analytics/system-metrics?hostname=elsewhere")
    assert elsewhere["replicas"] == []


async def test_what_the_clean_up_removed(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    api.configure(queue)
    for kind, messages in (("retention", 5), ("max_wait_time_eviction", 7), ("retention", 1)):
        await connection.execute(
            "insert into queen.retention_history (queue_id, kind, segments, messages)"
            " select id, $2, 1, $3 from queen.queues where name = $1",
            queue,
            kind,
            messages,
        )
    # It is over by now, whatever the two clocks say.
    later = quote((datetime.now(UTC) + timedelta(minutes=5)).isoformat())
    found = _get(api, f"analytics/retention?queue={queue}&to={later}")
    assert _sum(found["series"], "retentionMsgs", "evictionMsgs", "eventCount") == (6, 7, 3)
    assert found["totals"]["totalMsgs"] == 13


def test_postgres_tells_of_itself_but_not_of_queries(api: Api) -> None:
    found = _get(api, "analytics/postgres-stats")
    assert found["database"]["sizeBytes"] > 0
    assert 0 <= found["databaseCache"]["hitRatio"] <= 100
    assert "segments" in {one["table"] for one in found["tableSizes"]}
    assert all("query" not in one for one in found["activeQueries"])


def test_nothing_waits_in_a_buffer_that_is_not_there(api: Api) -> None:
    found = _get(api, "status/buffers")
    assert (found["pending"], found["failed"], found["dbHealthy"]) == (0, 0, True)


# ---- asking ----


@pytest.mark.parametrize(
    ("length", "minutes"),
    [
        (timedelta(hours=1), 1),
        (timedelta(hours=6), 5),
        (timedelta(days=1), 15),
        (timedelta(days=7), 60),
        (timedelta(days=30), 360),
    ],
)
def test_longer_ranges_have_longer_periods(api: Api, length: timedelta, minutes: int) -> None:
    now = datetime.now(UTC)
    query = f"from={quote((now - length).isoformat())}&to={quote(now.isoformat())}"
    assert _get(api, f"status?{query}")["bucketMinutes"] == minutes
    assert _get(api, f"analytics/queue-ops?{query}")["bucketMinutes"] == minutes


@pytest.mark.parametrize("route", _ROUTES)
@pytest.mark.parametrize(
    "query",
    [
        "from=yesterday",
        "to=2026-13-01",
        "from=2026-01-02&to=2026-01-01",
        "from=0001-01-01",
        "queue=%01",
        "namespace=" + "n" * 256,
    ],
)
def test_a_range_or_filter_that_makes_no_sense_is_refused(api: Api, route: str, query: str) -> None:
    answer = api.call("GET", f"/api/v1/{route}?{query}")
    assert answer.status == 400, answer
    assert answer.json["code"] == "bad_request"


@pytest.mark.parametrize(
    "path",
    [
        "status/analytics?interval=week",
        "status/queues?limit=0",
        "status/queues/a/messages?limit=1001",
        "status/queues/a/messages?status=lost",
        "analytics/system-metrics?workerId=-5",
        "analytics/queue-ops?limit=0",
    ],
)
def test_what_cannot_be_asked_is_refused(api: Api, path: str) -> None:
    assert api.call("GET", f"/api/v1/{path}").status == 400


@pytest.mark.parametrize("route", _ROUTES)
def test_filters_are_data(api: Api, route: str) -> None:
    name = quote("x' or '1'='1")
    answer = api.call("GET", f"/api/v1/{route}?queue={name}&namespace={name}&task={name}")
    assert answer.status == 200
    assert name not in answer.raw.decode()


def test_messages_of_an_unknown_queue(api: Api, queue: str) -> None:
    assert api.call("GET", f"/api/v1/status/queues/{queue}/messages").status == 404

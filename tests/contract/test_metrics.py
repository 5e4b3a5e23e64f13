"""Metrics: JSON for clients, text for Prometheus, and a page that names them all."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from queen.server.metrics.queue_labels import OTHER, QueueLabels
from queen.service.stats.activity import Counters
from queen.storage.embedded import EmbeddedPostgres
from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Park
from tests.contract.groupcalls import eventually
from tests.waiting import until

_PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def _samples(answer: Answer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    assert answer.status == 200, answer
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.raw.decode())
        for sample in family.samples
    }


def _value(api: Api, name: str, **labels: str) -> float:
    """The sum of all samples of a metric that have these labels."""
    samples = _samples(api.call("GET", "/metrics/prometheus"))
    wanted = set(labels.items())
    found = [value for (one, has), value in samples.items() if one == name and wanted <= set(has)]
    assert found, name
    return sum(found)


def test_json_unless_text_is_accepted(api: Api) -> None:
    found = api.call("GET", "/metrics").json
    assert found["uptime"] > 0
    assert found["requests"]["total"] >= 1
    assert found["database"]["poolSize"] >= found["database"]["idleConnections"] >= 0
    assert found["memory"]["rss"] > 10_000_000
    assert found["cpu"]["user"] > 0


@pytest.mark.parametrize(
    ("accept", "is_text"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("text/html", False),
        ("text/plain", True),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5", True),
    ],
)
def test_the_accept_header_decides(api: Api, accept: str, is_text: bool) -> None:
    answer = api.call("GET", "/metrics", headers={"Accept": accept} if accept else {})
    kind = "text/plain; version=0.0.4; charset=utf-8" if is_text else "application/json"
    assert answer.headers["content-type"] == kind


@pytest.fixture(scope="module")
def own(dsn: str) -> Iterator[Api]:
    """A server with room for every queue of all tests."""
    running = ServerProcess("--database-url", dsn, "--metrics-queues", "10000")
    yield running.api()
    assert running.stop() == 0


async def test_a_snapshot_that_somebody_holds_open_is_seen(
    own: Api, connection: asyncpg.Connection
) -> None:
    def age_s() -> float:
        return _value(own, "queen_db_oldest_snapshot_seconds")

    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("select count(*) from queen.queues")
        first = age_s()
        assert eventually(lambda: age_s() > first + 0.5)
        held = age_s()
    assert eventually(lambda: age_s() < held)


def test_counters_of_a_queue_count(own: Api, queue: str) -> None:
    api = own
    before = _value(api, "queen_cluster_push_messages_total")
    api.push_many(queue, 5)
    popped = api.messages(queue, batch=3)
    api.ack_batch(popped[:2])
    assert _value(api, "queen_queue_push_messages_total", queue=queue) == 5
    assert _value(api, "queen_queue_pop_messages_total", queue=queue) == 3
    assert _value(api, "queen_queue_ack_messages_total", queue=queue) == 2
    assert _value(api, "queen_cluster_push_messages_total") >= before
    assert _value(api, "queen_flush_batch_messages_count") >= 1
    assert _value(api, "queen_db_up") == 1


def test_gauges_of_groups_and_queues(own: Api, queue: str) -> None:
    own.push_many(queue, 5)
    own.messages(queue, batch=2, consumerGroup="g", autoAck="true")
    until(lambda: own.call("POST", "/api/v1/stats/refresh").json.get("skipped") is False)
    assert _value(own, "queen_group_pending_messages", queue=queue, group="g") == 3
    assert _value(own, "queen_group_lag_seconds", queue=queue, group="g") >= 0
    assert _value(own, "queen_queue_retained_messages", queue=queue) == 5


def test_parked_polls_are_a_gauge(api: Api, queue: str, park: Park) -> None:
    api.configure(queue)
    park(api, queue)
    assert _value(api, "queen_parked_polls") >= 1


def test_the_totals_of_the_cluster_come_from_all_servers(
    api: Api, other_api: Api, queue: str
) -> None:
    before = _value(api, "queen_cluster_push_messages_total")
    other_api.push_many(queue, 5)
    # Whoever is asked writes down first what it has counted.
    assert _value(other_api, "queen_cluster_push_messages_total") >= before
    until(lambda: _value(api, "queen_cluster_push_messages_total") >= before + 5)


def test_few_queues_have_series_of_their_own(
    start_server: Callable[..., ServerProcess], dsn: str, queue: str
) -> None:
    api = start_server("--database-url", dsn, "--metrics-queues", "2").api()
    for number in range(5):
        api.push_many(f"{queue}-{number}", 1 + number)
    samples = _samples(api.call("GET", "/metrics/prometheus"))
    pushed = {
        dict(labels)["queue"]: value
        for (name, labels), value in samples.items()
        if name == "queen_queue_push_messages_total"
    }
    assert pushed == {f"{queue}-4": 5, f"{queue}-3": 4, OTHER: 6}


async def test_a_scrape_tells_that_the_database_is_down(
    start_server: Callable[..., ServerProcess], postgres: EmbeddedPostgres
) -> None:
    name = f"down_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    url = urlsplit(postgres.dsn)._replace(path=f"/{name}").geturl()
    running = start_server("--database-url", url)
    api = running.api()
    assert _value(api, "queen_db_up") == 1
    await admin.execute(f"alter database {name} with allow_connections false")
    await admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name
    )
    samples = _samples(api.call("GET", "/metrics/prometheus"))
    assert samples["queen_db_up", ()] == 0
    # A counter that is not known is left out; zero would be a counter that went back.
    assert not any(name.startswith("queen_cluster_") for name, _ in samples)
    running.stop()
    await admin.execute(f"drop database {name}")
    await admin.close()


def _counters(name: str, messages: int) -> Counters:
    counters = Counters(name)
    counters.push_messages = messages
    return counters


def test_counters_never_go_back_when_queues_come_and_go() -> None:
    labels = QueueLabels(2)

    def pushed(*queues: Counters) -> dict[str, int]:
        return {name: values[1] for name, values in labels.rows(queues).items()}

    one, two, three = _counters("one", 10), _counters("two", 5), _counters("three", 1)
    assert pushed(one, two, three) == {"one": 10, "two": 5, OTHER: 1}
    three.push_messages = 100
    assert pushed(one, two, three) == {"one": 10, "two": 5, OTHER: 100}
    # A deleted queue makes room; what the next one did before stays where it was counted.
    assert pushed(two, three) == {"two": 5, "three": 0, OTHER: 100}
    three.push_messages = 103
    assert pushed(two, three) == {"two": 5, "three": 3, OTHER: 100}
    # One that shared `other` leaves its part behind.
    four = _counters("four", 7)
    assert pushed(two, three, four)[OTHER] == 107
    assert pushed(two, three)[OTHER] == 107


def test_streams_have_numbers_for_each_group(api: Api, queue: str) -> None:
    stream = f"{queue}-stream"
    definition = {
        "name": stream,
        "namespace": "",
        "source_queue_names": [queue],
        "partitioned": True,
        "window_duration_ms": 100,
        "window_grace_period_ms": 0,
        "retry_limit": 0,
    }
    assert api.call("POST", "/api/v1/stream/define", definition).status == 201
    for partition in "abc":
        api.push({"queue": queue, "partition": partition, "payload": 1})
    planned = _value(api, "queen_stream_windows_planned_total")
    settled = {
        outcome: _value(api, "queen_stream_windows_settled_total", outcome=outcome)
        for outcome in ("done", "retry", "dead")
    }
    polled = []
    for group in ("g", "g", "g", "idle"):
        body = {"streamName": stream, "consumerGroup": group, "timeout": 5000}
        polled.append(api.call("POST", "/api/v1/stream/poll", body).json["window"])
    for window, success in zip(polled[:2], (True, False), strict=True):
        body = {"leaseId": window["leaseId"], "success": success}
        assert api.call("POST", "/api/v1/stream/ack", body).status == 200
    for name, value in (("waiting", 1), ("leased", 1), ("retrying", 0), ("dead", 1)):
        found = _value(api, f"queen_stream_windows_{name}", stream=stream, group="g")
        assert found == value, name
    assert _value(api, "queen_stream_windows_waiting", stream=stream, group="idle") == 3
    assert _value(api, "queen_stream_behind_seconds", stream=stream, group="g") > 0
    for outcome, more in (("done", 1), ("retry", 0), ("dead", 1)):
        found = _value(api, "queen_stream_windows_settled_total", outcome=outcome)
        assert found == settled[outcome] + more
    # Another server on the database may have planned some of them.
    assert _value(api, "queen_stream_windows_planned_total") >= planned
    assert _value(api, "queen_stream_plan_duration_seconds_count") > 0


def test_the_page_names_every_metric_and_no_other(api: Api) -> None:
    text = api.call("GET", "/metrics/prometheus").raw.decode()
    served = dict(re.findall(r"^# TYPE (queen_\w+) (\w+)$", text, re.MULTILINE))
    page = dict(re.findall(r"^\| `(queen_\w+)` \| (\w+) \|", _PAGE.read_text(), re.MULTILINE))
    assert page == served


def test_every_metric_says_what_it_is(api: Api) -> None:
    text = api.call("GET", "/metrics/prometheus").raw.decode()
    about = dict(re.findall(r"^# HELP (queen_\w+) (.+)$", text, re.MULTILINE))
    for name, words in re.findall(
        r"^\| `(queen_\w+)` \| \w+ \| [^|]* \| (.+) \|$", _PAGE.read_text(), re.MULTILINE
    ):
        assert about[name] == words


def test_a_server_tells_who_it_is(api: Api) -> None:
    found: dict[str, Any] = api.call("GET", "/health").json
    assert (found["status"], found["worker_id"]) == ("healthy", 0)
    assert found["version"]
    shared = api.call("GET", "/api/v1/system/shared-state").json
    assert shared["running"] is True and shared["dedupWindowSeconds"] >= 0

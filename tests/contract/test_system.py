"""/api/v1/system/…: servers, PostgreSQL, settings, and the map of what flows where."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tests.api import Api, ack_of, push_of
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect
from tests.contract.sinkcalls import Sink, frame
from tests.contract.test_streams import Streams
from tests.waiting import until

_MAP = "/api/v1/system/map"


def drawn(api: Api, queue: str) -> tuple[dict[str, Any], dict[tuple[str, str, str], Any]]:
    """Return what is connected with a queue: nodes by id, and rates by the ends of an edge."""
    answer = api.call("GET", f"{_MAP}?queue={quote(queue, safe='')}")
    assert answer.status == 200, answer.raw
    nodes = {node["id"]: node for node in answer.json["nodes"]}
    names = {key: node["name"] for key, node in nodes.items()}
    edges = {
        (names[edge["source"]], names[edge["target"]], edge["kind"]): edge["perSecond"]
        for edge in answer.json["edges"]
    }
    return nodes, edges


def drawn_with(api: Api, queue: str, *moving: tuple[str, str, str]) -> Any:
    """The same, once these edges are there and something has moved along them."""

    def has_moved() -> Any:
        nodes, edges = drawn(api, queue)
        # What servers have counted is written every now and then.
        return (nodes, edges) if all(edges.get(edge) for edge in moving) else None

    return until(has_moved)


def test_a_group_that_acks_and_pushes_at_once_connects_two_queues(api: Api, queue: str) -> None:
    api.push(*({"queue": queue, "payload": n} for n in range(3)))
    messages = api.messages(queue, consumerGroup="billing", batch=3)
    results = [{"queue": f"{queue}-out", "payload": n} for n in range(2)]
    acks = [ack_of(message) for message in messages]
    assert api.transaction(*acks, push_of(*results)).status == 200
    reads, writes = (queue, "billing", "reads"), ("billing", f"{queue}-out", "writes")
    nodes, edges = drawn_with(api, queue, reads, writes)
    assert edges.keys() == {reads, writes}
    assert nodes[f"queue:{queue}-out"]["detail"]["perSecond"] > 0
    (group,) = [node for node in nodes.values() if node["kind"] == "group"]
    assert (group["name"], group["detail"]["queue"], group["detail"]["paused"]) == (
        "billing",
        queue,
        False,
    )
    # From its other end it is the same picture.
    assert drawn(api, f"{queue}-out")[1].keys() == edges.keys()


def test_acks_are_counted_by_group_and_pushes_apart_from_them_connect_nothing(
    api: Api, queue: str
) -> None:
    api.push({"queue": queue, "payload": 1})
    for group in ("quick", "slow"):
        (message,) = api.messages(queue, consumerGroup=group)
        if group == "quick":
            assert api.ack(message).status == 200
    api.push({"queue": queue, "payload": 2})
    api.pop(queue, consumerGroup="auto", autoAck="true")
    api.push({"queue": f"{queue}-out", "payload": 1})
    reads = {group: (queue, group, "reads") for group in ("quick", "slow", "auto")}
    _, edges = drawn_with(api, queue, reads["quick"], reads["auto"])
    assert edges.keys() == set(reads.values())
    assert edges[queue, "slow", "reads"] == 0


def test_results_of_windows_connect_a_stream_with_their_queue(api: Api, queue: str) -> None:
    streams = Streams(api, f"{queue}-")
    streams.define(window_type="count", window_size_count=1, window_duration_ms=None)
    streams.push("q", 1)
    results = [{"queue": f"{queue}-out", "payload": n} for n in range(4)]
    assert streams.ack(streams.poll(), push=results).status == 200
    source, stream, out = f"{queue}-q", f"{queue}-s", f"{queue}-out"
    nodes, edges = drawn_with(api, source, (stream, out, "writes"))
    assert edges.keys() == {(source, stream, "reads"), (stream, out, "writes")}
    assert edges[source, stream, "reads"] is None
    assert nodes[f"stream:{stream}"]["kind"] == "stream"


def test_a_pipeline_connects_what_it_reads_with_all_it_writes(api: Api, queue: str) -> None:
    out, late, name = f"{queue}-out", f"{queue}-late", f"p-{queue}"
    definition = {
        "name": name,
        "reads": [{"name": "r", "queues": [queue], "schema": "amount double"}],
        "window": {"type": "tumbling", "sizeMs": 60000},
        "aggregates": {"total": "sum(data.amount)"},
        "lateTo": late,
        "output": {"queue": out},
    }
    made = api.call("POST", "/api/v1/pipelines", {"definition": definition})
    assert made.status == 201, made.raw
    sink = Sink(api, f"query-{queue}")
    sink.open()
    sink.stage(frame(out, range(3)))
    assert sink.commit((0, 3)).status == 200
    # Nobody has said yet whose query it is.
    drawn_with(api, out, (f"query-{queue}", out, "writes"))
    report = {
        "runId": "a",
        "state": "running",
        "queryId": f"query-{queue}",
        "uiUrl": "http://localhost:4040",
        "inputRowsPerSecond": 12.5,
    }
    assert api.call("POST", f"/api/v1/pipelines/{name}/progress", report).status == 200
    nodes, edges = drawn_with(api, queue, (name, out, "writes"))
    assert edges.keys() == {
        (queue, name, "reads"),
        (name, out, "writes"),
        (name, late, "late"),
    }
    assert edges[queue, name, "reads"] == 12.5
    assert nodes[f"pipeline:{name}"]["detail"]["state"] == "running"


def test_a_map_of_nothing_is_the_queue_alone(api: Api, queue: str) -> None:
    nodes, edges = drawn(api, f"{queue}-unknown")
    assert [node["name"] for node in nodes.values()] == [f"{queue}-unknown"]
    assert not edges
    assert api.call("GET", f"{_MAP}?limit=0").status == 400
    assert api.call("GET", f"{_MAP}?queue=a%00b").status == 400


def test_the_busiest_edges_are_kept_when_there_are_too_many(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": 1})
    for group in ("a", "b"):
        api.pop(queue, consumerGroup=group, autoAck="true")
    answer = api.call("GET", f"{_MAP}?queue={queue}&limit=1").json
    assert (len(answer["edges"]), len(answer["nodes"]), answer["more"]) == (1, 2, True)


def test_runs_of_a_pipeline_are_counted(api: Api, queue: str) -> None:
    name = f"p-{queue}"
    definition = {
        "name": name,
        "reads": [{"name": "r", "queues": [queue], "schema": "n int"}],
        "output": {"queue": f"{queue}-out"},
    }
    api.call("POST", "/api/v1/pipelines", {"definition": definition})
    assert api.call("GET", f"/api/v1/pipelines/{name}").json["runs"] == 0
    for run in ("a", "a", "b"):
        api.call("POST", f"/api/v1/pipelines/{name}/progress", {"runId": run, "state": "running"})
    shown = api.call("GET", f"/api/v1/pipelines/{name}").json
    assert shown["runs"] == 2
    bad = {"runId": "b", "state": "running", "uiUrl": "javascript:alert(1)"}
    assert api.call("POST", f"/api/v1/pipelines/{name}/progress", bad).status == 400


def test_servers_say_what_they_use(api: Api, server: ServerProcess) -> None:
    port = int(server.url.rpartition(":")[2])

    def mine() -> Any:
        answer = api.call("GET", "/api/v1/system/servers").json
        rows = [row for row in answer["servers"] if row["port"] == port]
        return (answer, rows[0]) if rows and rows[0]["memoryBytes"] else None

    answer, row = until(mine)
    assert (answer["port"], answer["worker"]) == (port, row["worker"])
    assert row["memoryBytes"] > 10_000_000
    assert row["cpuPercent"] >= 0
    assert row["startedAt"] <= row["seenAt"]


def steps_of(api: Api, queue: str) -> list[str]:
    answer = api.call("GET", f"/api/v1/system/steps?queue={queue}")
    assert answer.status == 200, answer.raw
    at = [step["atNs"] for step in answer.json["steps"] if step["name"] != "written"]
    assert at == sorted(at)
    return [step["name"] for step in answer.json["steps"]]


def test_a_lone_message_is_followed_from_the_push_to_the_ack(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": 0})
    assert steps_of(api, queue) == [], "what came before nobody followed"
    api.push({"queue": f"{queue}-other", "payload": 1})
    api.push({"queue": queue, "payload": 1})
    (message, *_) = api.messages(queue, batch=2)
    api.ack(message)
    steps = steps_of(api, queue)
    pushed = ["taken", "flushed", "sent", "written", "stored", "told"]
    assert steps == [
        *pushed,
        "claimed",
        "asked",
        "leased",
        "handed",
        "acked",
        "settling",
        "settled",
    ]
    assert steps_of(api, queue) == [], "what was told is not told again"


def test_only_a_queue_that_can_be_named_is_followed(api: Api) -> None:
    assert api.call("GET", "/api/v1/system/steps").status == 400


@pytest.fixture
async def held(connection: asyncpg.Connection) -> AsyncIterator[None]:
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("select txid_current()")
    yield
    await transaction.rollback()


async def test_postgres_shows_transactions_that_hold_things_up(api: Api, held: None) -> None:
    def old() -> Any:
        health = api.call("GET", "/api/v1/system/postgres").json
        idle = [row for row in health["held"] if row["state"] == "idle in transaction"]
        is_told = any(row["holdsBackVacuum"] and row["seconds"] >= 1 for row in idle)
        # Both are asked for in turn, and one of them a moment earlier.
        return health if is_told and health["oldestSnapshotSeconds"] >= 1 else None

    health = until(old)
    assert 0 < health["connections"] <= health["maxConnections"]
    assert 0 <= health["cacheHitPercent"] <= 100
    assert "segments" in {table["table"] for table in health["tables"]}


def test_totals_of_postgres_grow(api: Api, queue: str) -> None:
    before = api.call("GET", "/api/v1/system/postgres").json["totals"]
    api.push({"queue": queue, "payload": "x" * 1000})

    def has_grown() -> bool:
        # PostgreSQL's own numbers come a moment later.
        now = api.call("GET", "/api/v1/system/postgres").json["totals"]
        return bool(now["walBytes"] > before["walBytes"] and now["commits"] > before["commits"])

    assert until(has_grown)


def test_settings_tell_where_they_come_from_and_no_secret(
    own_database: str, connect: Connect
) -> None:
    key = "ab" * 32
    environment = {
        "QUEEN_ENCRYPTION_KEY": key,
        "QUEEN_TRACE_DAYS": "12",
        "QUEEN_SPOOL_FLUSH_MS": "50",
        "PG_PASSWORD": "hush-hush",
    }
    running = ServerProcess("--database-url", f"{own_database}&password=hush", env=environment)
    try:
        answer = connect(running).call("GET", "/api/v1/system/settings")
    finally:
        assert running.stop() == 0
    assert answer.status == 200
    assert key.encode() not in answer.raw
    assert b"hush" not in answer.raw
    settings = {setting["name"]: setting for setting in answer.json["settings"]}
    origins = {name: (setting["value"], setting["origin"]) for name, setting in settings.items()}
    assert origins["trace-days"] == ("12", "environment")
    assert origins["metrics-queues"] == ("100", "default")
    assert origins["QUEEN_SPOOL_FLUSH_MS"] == ("50", "environment")
    assert origins["encryption-key"] == ("set", "environment")
    assert origins["PG_PASSWORD"] == ("set", "environment")
    assert origins["database-url"][1] == "command"
    assert settings["port"]["variable"] == "QUEEN_PORT"
    assert settings["trace-days"]["about"] == "Traces are kept this long."

"""What is stored, how long it lasts, and what the doctor says of it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.conftest import Connect
from tests.contract.groupcalls import eventually


def kept(api: Api) -> dict[str, Any]:
    answer = api.call("GET", "/api/v1/status/storage").json
    return {queue["name"]: queue for queue in answer["queues"]}


def test_queues_without_retention_are_named(own_server: ServerProcess, connect: Connect) -> None:
    api = connect(own_server)
    assert api.call("GET", "/api/v1/status/storage").json["sentence"] is None
    for name in ("keeps", "week", "done", "ttl", "switched-off"):
        api.push_many(name, 3)
    for name, options in {
        "week": {"retentionEnabled": True, "retentionSeconds": 604800},
        "done": {"retentionEnabled": True, "completedRetentionSeconds": 60},
        "ttl": {"ttl": 60},
        "switched-off": {"retentionSeconds": 60},
    }.items():
        path = f"/api/v1/resources/queues/{name}/options"
        assert api.call("PATCH", path, {"options": options}).status == 200
    assert set(kept(api)) == {"keeps", "switched-off"}
    answer = api.call("GET", "/api/v1/status/storage").json
    assert answer["queuesKeepingEverything"] == 2
    assert answer["bytesKeptForEver"] > 0
    assert "2 queues keep every message for ever" in answer["sentence"]
    # This PostgreSQL is on this machine, so its disk can be seen.
    assert 0 < answer["disk"]["freeBytes"] <= answer["disk"]["totalBytes"]


async def test_the_disk_has_a_day_on_which_it_is_full(
    own_server: ServerProcess, own_database: str, connect: Connect
) -> None:
    """Told from what was pushed in the last days into queues that keep everything."""
    api = connect(own_server)
    api.push_many("keeps", 1)
    connection = await asyncpg.connect(own_database)
    try:
        await connection.execute(
            """insert into queen.activity
               select q.id, now() - interval '2 days', -1, 0, 0, 0, 10000000000, 0, 0, 0, 0, 0, 0,
                      0, 0, 0, 0, 0, 0, 0, 0
               from queen.queues q where q.name = 'keeps'"""
        )
    finally:
        await connection.close()
    answer = api.call("GET", "/api/v1/status/storage").json
    assert answer["growthBytesPerDay"] == pytest.approx(5_000_000_000, rel=0.01)
    expected = answer["disk"]["freeBytes"] / answer["growthBytesPerDay"]
    assert answer["daysUntilFull"] == pytest.approx(expected, abs=0.1)


def findings(api: Api) -> dict[str, dict[str, str]]:
    answer = api.call("GET", "/api/v1/system/doctor")
    assert answer.status == 200
    return {finding["check"]: finding for finding in answer.json["findings"]}


def test_the_doctor_looks_at_everything(own_server: ServerProcess, connect: Connect) -> None:
    found = findings(connect(own_server))
    assert {
        "server version", "breaker", "spool", "PostgreSQL", "fsync", "full_page_writes",
        "synchronous_commit", "autovacuum", "shared_buffers", "max_wal_size", "max_connections",
        "clock of the server and the database", "held transactions", "bloat", "retention", "disk",
        "schema",
    } <= found.keys()  # fmt: skip
    assert found["synchronous_commit"]["level"] == "ok"


async def test_the_doctor_finds_a_transaction_that_is_held(
    own_server: ServerProcess, own_database: str, connect: Connect
) -> None:
    api = connect(own_server)
    connection = await asyncpg.connect(own_database)
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("select txid_current()")
        assert await asyncio.to_thread(
            eventually, lambda: "is 0 s old" not in findings(api)["held transactions"]["says"]
        )
    finally:
        await transaction.rollback()
        await connection.close()

"""Jobs and schedules end where a namespace ends, need their roles, and are audited."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.security.client import Client
from tests.security.conftest import As


@pytest.fixture
def names() -> tuple[str, str]:
    """Two namespaces."""
    return f"ns{uuid.uuid4().hex[:6]}", f"ns{uuid.uuid4().hex[:6]}"


def schedule(name: str, queue: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "queue": queue, "cron": "0 3 * * *", **more}


def test_a_schedule_is_seen_where_its_queue_is(as_: As, names: tuple[str, str]) -> None:
    mine, theirs = names
    admin, inside = as_("admin"), as_("admin", mine)
    for name in names:
        body = schedule(name, f"{name}.q")
        assert admin.call("POST", "/api/v1/schedules", body).status == 201
    listed = inside.call("GET", "/api/v1/schedules").json
    assert [row["name"] for row in listed["schedules"]] == [mine]
    assert listed["pagination"]["total"] == 1
    root = f"/api/v1/schedules/{theirs}"
    asked = [
        ("GET", root),
        ("GET", f"{root}/next"),
        ("POST", f"{root}/pause"),
        ("POST", f"{root}/resume"),
        ("DELETE", root),
        ("GET", f"/api/v1/schedules?queue={theirs}.q"),
    ]
    for method, path in asked:
        assert inside.call(method, path).status == 404, path
    # Neither into a queue of theirs, nor over a schedule of theirs.
    assert inside.call("POST", "/api/v1/schedules", schedule("x", f"{theirs}.q")).status == 404
    taken = inside.call("POST", "/api/v1/schedules", schedule(theirs, f"{mine}.q", replace=True))
    assert taken.status == 409
    assert theirs + ".q" not in taken.raw.decode()
    assert admin.call("GET", root).json["state"] == "active"


def test_jobs_are_asked_for_finished_and_pushed_within_a_namespace(
    as_: As, names: tuple[str, str]
) -> None:
    mine, theirs = names
    admin, inside = as_("admin"), as_("read-write", mine)
    key = {"queue": f"{theirs}.q", "key": "k", "transactionId": "secret@Default"}
    assert admin.call("POST", "/api/v1/jobs", key).status == 201
    assert inside.call("POST", "/api/v1/jobs", key).status == 404
    assert inside.call("GET", f"/api/v1/jobs/{theirs}.q/secret@Default").status == 404
    answer = admin.call("GET", f"/api/v1/pop/queue/{theirs}.q?consumerGroup=workers")
    (message,) = answer.json["messages"]
    done = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    body = {"consumerGroup": "workers", "jobs": [{**done, "result": 1}]}
    (refused,) = inside.call("POST", "/api/v1/jobs/finish", body).json["results"]
    assert not refused["success"]
    (taken,) = admin.call("POST", "/api/v1/jobs/finish", body).json["results"]
    assert taken["success"]


def test_who_may_what(as_: As, names: tuple[str, str]) -> None:
    name = names[0]
    reader, writer, admin = as_("read-only"), as_("read-write"), as_("admin")
    body = schedule(name, f"{name}.q")
    root = f"/api/v1/schedules/{name}"
    assert reader.call("POST", "/api/v1/schedules", body).status == 403
    assert writer.call("POST", "/api/v1/schedules", body).status == 201
    assert reader.call("GET", root).status == 200
    assert reader.call("POST", f"{root}/pause").status == 403
    assert writer.call("POST", f"{root}/pause").status == 200
    assert writer.call("DELETE", root).status == 403
    assert admin.call("DELETE", root).status == 200
    assert reader.call("POST", "/api/v1/jobs", {"queue": "q", "key": "k"}).status == 403
    acts = audited(admin, name)
    assert acts == ["schedule.delete", "schedule.pause", "schedule.define"]


def audited(admin: Client, target: str) -> list[str]:
    """Return what was done to something, latest first."""
    entries = admin.call("GET", "/api/v1/system/audit?limit=100").json["entries"]
    return [entry["act"] for entry in entries if entry["target"] == target]

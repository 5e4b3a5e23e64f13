"""Pipelines as the broker keeps them: definitions, reports, and the wish to stop."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.api import Api
from tests.contract.test_metrics import _value

_ROOT = "/api/v1/pipelines"


def _definition(name: str, **more: Any) -> dict[str, Any]:
    base = {
        "name": name,
        "reads": [{"name": "orders", "queues": ["orders"], "schema": "amount double"}],
        "window": {"type": "tumbling", "sizeMs": 60000},
        "aggregates": {"total": "sum(data.amount)"},
        "output": {"queue": "totals"},
    }
    return base | more


@pytest.fixture
def name() -> str:
    return f"p-{uuid.uuid4().hex[:12]}"


def _define(api: Api, definition: dict[str, Any], **more: Any) -> Any:
    return api.call("POST", _ROOT, {"definition": definition, **more})


def test_a_definition_is_stored_and_shown(api: Api, name: str) -> None:
    made = _define(api, _definition(name))
    assert (made.status, made.json["created"], made.json["version"]) == (201, True, 1)
    shown = api.call("GET", f"{_ROOT}/{name}").json
    assert shown["definition"] == _definition(name)
    assert (shown["state"], shown["reads"], shown["writes"]) == ("new", ["orders"], "totals")
    assert name in [one["name"] for one in api.call("GET", f"{_ROOT}?limit=1000").json["pipelines"]]


def test_the_same_definition_again_changes_nothing(api: Api, name: str) -> None:
    first = _define(api, _definition(name)).json
    # The order of the fields, and defaults that are said, make no difference.
    other = dict(reversed(_definition(name, graceMs=30000).items()))
    again = _define(api, other)
    assert again.status == 200
    assert again.json == first | {"created": False}


def test_another_definition_is_refused_in_words(api: Api, name: str) -> None:
    _define(api, _definition(name))
    changed = _definition(name, aggregates={"total": "max(data.amount)"}, graceMs=5000)
    refused = _define(api, changed)
    assert refused.status == 409
    assert refused.json["differs"] == [
        "graceMs: 30000 -> 5000",
        "aggregates.total: sum(data.amount) -> max(data.amount)",
    ]
    assert "replace" in refused.json["error"]
    replaced = _define(api, changed, replace=True)
    assert (replaced.status, replaced.json["version"], replaced.json["changed"]) == (200, 2, True)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"window": None}, "window"),
        ({"window": {"type": "sliding", "sizeMs": 10, "slideMs": 20}}, "slideMs"),
        ({"window": {"type": "session"}}, "gapMs"),
        ({"aggregates": {}}, "aggregates"),
        ({"output": {}}, "output"),
        ({"output": {"queue": "orders"}}, "output.queue"),
        ({"lateTo": "orders"}, "lateTo"),
        ({"joins": [{"on": [["a", "b"]], "withinMs": 1}]}, "joins"),
        ({"top": {"count": 1, "by": "total", "per": ["user"]}}, "top.per"),
        ({"sources": ["orders"]}, "sources"),
        ({"graceMs": -1}, "graceMs"),
        ({"name": "a\nb"}, "pipeline name"),
    ],
)
def test_a_wrong_definition_is_refused_by_its_field(
    api: Api, name: str, more: dict[str, Any], word: str
) -> None:
    refused = _define(api, _definition(name) | more)
    assert refused.status == 400
    assert word in refused.json["error"]


def test_a_run_reports_and_hears_that_it_is_to_stop(api: Api, name: str) -> None:
    _define(api, _definition(name))
    path = f"{_ROOT}/{name}"
    report = {"runId": "r1", "state": "running", "inputRows": 7, "lateRows": 2}
    assert api.call("POST", f"{path}/progress", report).json == {"stop": False}
    shown = api.call("GET", path).json
    assert (shown["state"], shown["progress"]["inputRows"]) == ("running", 7)
    assert api.call("POST", f"{path}/stop").json == {"success": True, "running": True}
    assert api.call("GET", path).json["state"] == "stopping"
    assert api.call("POST", f"{path}/progress", report).json == {"stop": True}
    # The wish was meant for that run and for no other.
    assert api.call("POST", f"{path}/progress", report | {"runId": "r2"}).json == {"stop": False}
    ended = {"runId": "r2", "state": "failed", "error": "no such field"}
    api.call("POST", f"{path}/progress", ended)
    shown = api.call("GET", path).json
    assert (shown["state"], shown["progress"]["error"]) == ("failed", "no such field")
    assert api.call("POST", f"{path}/stop").json["running"] is False


@pytest.mark.parametrize("run_id", ["", "a b", "a\u0000b", "x" * 65])
def test_a_run_needs_a_plain_name(api: Api, name: str, run_id: str) -> None:
    _define(api, _definition(name))
    report = {"runId": run_id, "state": "running"}
    assert api.call("POST", f"{_ROOT}/{name}/progress", report).status == 400


def test_progress_is_in_the_metrics(api: Api, name: str) -> None:
    _define(api, _definition(name))
    report = {
        "runId": "r1",
        "state": "running",
        "inputRows": 70,
        "lateRows": 2,
        "stateRows": 5,
        "batchMs": 250,
        "behindMessages": 9,
        "behindBytes": 900,
        "behindMs": 1500,
        "failedRows": 3,
        "watermark": "2026-01-01T00:00:00.000Z",
    }
    api.call("POST", f"{_ROOT}/{name}/progress", report)
    assert _value(api, "queen_pipeline_up", pipeline=name) == 1
    assert _value(api, "queen_pipeline_input_rows_total", pipeline=name) == 70
    assert _value(api, "queen_pipeline_late_rows_total", pipeline=name) == 2
    assert _value(api, "queen_pipeline_failed_rows_total", pipeline=name) == 3
    assert _value(api, "queen_pipeline_behind_messages", pipeline=name) == 9
    assert _value(api, "queen_pipeline_behind_bytes", pipeline=name) == 900
    assert _value(api, "queen_pipeline_behind_seconds", pipeline=name) == 1.5
    assert _value(api, "queen_pipeline_state_rows", pipeline=name) == 5
    assert _value(api, "queen_pipeline_batch_seconds", pipeline=name) == 0.25


def test_a_deleted_pipeline_is_gone(api: Api, name: str) -> None:
    _define(api, _definition(name))
    assert api.call("DELETE", f"{_ROOT}/{name}").status == 200
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/stop")):
        assert api.call(method, f"{_ROOT}/{name}{path}").status == 404
    report = {"runId": "r1", "state": "running"}
    assert api.call("POST", f"{_ROOT}/{name}/progress", report).status == 404

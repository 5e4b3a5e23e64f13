"""Dashboards and alerts ask for what servers tell, in words that Prometheus understands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.conftest import ServerProcess
from tests.deploy.files import DEPLOY, ROOT

DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
PROMETHEUS = DEPLOY / "prometheus"
_METRIC = re.compile(r"\b(?:queen_\w+|up)\b(?!\s*\()")
# Words in quotes and in braces are values and labels.
_QUOTED = re.compile(r'"[^"]*"|\{\{.*?\}\}')
_LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|without|on|ignoring) \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def queries() -> list[tuple[str, str]]:
    """Return every expression, with where it is from."""
    found = [(rule["alert"], rule["expr"]) for rule in rules()]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            title = f"{path.name}: {panel['title']}"
            found += [(title, target["expr"]) for target in panel.get("targets", [])]
    return found


def metrics_in(expression: str) -> set[str]:
    plain = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", _QUOTED.sub('""', expression))
    plain = re.sub(r"\b(?:by|without) \([^)]*\)", "", plain)
    return set(_METRIC.findall(plain))


@pytest.fixture(scope="module")
def told(server: ServerProcess) -> dict[str, set[str]]:
    """The metrics of a server, each with the labels that it can have."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(queen_\w+)` \| (\w+) \| ([^|]+) \|", page, re.MULTILINE)
    text = server.api().call("GET", "/metrics/prometheus").raw.decode()
    live = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    found: dict[str, set[str]] = {"up": {"job", "instance"}}
    for name, kind, labels in rows:
        # What the page names is what a server tells; of that alone a dashboard may ask.
        assert live.get(name) == kind or live.get(name.removesuffix("_total")) == kind, name
        known = {label.strip() for label in labels.split(",")} - {"-"} | {"instance"}
        found[name] = known
        if kind == "histogram":
            found |= {f"{name}_{end}": known | {"le"} for end in ("bucket", "sum", "count")}
    return found


def test_every_metric_that_is_asked_for_exists(told: dict[str, set[str]]) -> None:
    asked = queries()
    assert len(asked) > 60
    for where, expression in asked:
        named = metrics_in(expression)
        assert named, where
        assert named <= told.keys(), (where, named - told.keys())
        labels = {
            label.strip()
            for groups in _LABELS.findall(_QUOTED.sub("", expression))
            for text in groups
            for label in re.split(r",", re.sub(r"[=!~]+", ",", text))
            if label.strip() and not label.strip().startswith("$")
        }
        for name in named:
            assert labels <= told[name], (where, name, labels)


def test_variables_of_dashboards_come_from_metrics_that_exist(told: dict[str, set[str]]) -> None:
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        names = {variable["name"] for variable in board["templating"]["list"]}
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
                assert found is not None
                assert found[2] in told[found[1]]
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) - {"__rate_interval"}
        assert used <= names


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_of_a_dashboard_do_not_overlap(path: Any) -> None:
    board = json.loads(path.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_alert_says_what_to_do() -> None:
    page = (ROOT / "docs/howto/monitoring.md").read_text()
    headings = re.findall(r"^### (Queen\w+)$", page, re.MULTILINE)
    names = [rule["alert"] for rule in rules()]
    assert headings == names
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["runbook"].endswith("#" + rule["alert"].lower())


def test_expressions_are_parsed() -> None:
    promql_parser = pytest.importorskip("promql_parser")
    for where, expression in queries():
        plain = expression.replace("$__rate_interval", "5m")
        assert promql_parser.parse(plain), where


def test_prometheus_takes_the_rules_and_they_fire() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for words in (
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
        ["check", "config", "--syntax-only", "scrape.yaml"],
    ):
        done = subprocess.run(
            [promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

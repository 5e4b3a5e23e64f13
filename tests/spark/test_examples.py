"""The examples of pipelines compute what can be computed in the head."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess

FOLDER = Path(__file__).parents[2] / "examples" / "spark"

Shown = tuple[Any, list[str]]


@pytest.fixture
def shown(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    server: ServerProcess,
    capsys: pytest.CaptureFixture[str],
) -> Shown:
    """What the example of a test returns, and the lines it prints."""
    name = request.node.name.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    capsys.readouterr()
    result = module.main(server.url, spark)
    return result, capsys.readouterr().out.splitlines()


def test_dashboard(shown: Shown) -> None:
    assert shown[1] == [
        "1. /tea: 100 views by 7 visitors, 10 errors, 95 % within 95 ms",
        "2. /cup: 50 views by 7 visitors, 5 errors, 95 % within 48 ms",
        "3. /tray: 30 views by 7 visitors, 3 errors, 95 % within 29 ms",
    ]


def test_user_behaviour(shown: Shown) -> None:
    assert shown[1] == [
        "anna: 4 clicks, 50% bought, 34.50 in all",
        "bruno: 2 clicks, 0% bought, 0.00 in all",
    ]


def test_order_lifecycle(shown: Shown) -> None:
    assert shown[1] == [
        "order 1 is complete",
        "order 2 waits for its shipment",
        "order 3 is not paid",
    ]


def test_fraud_rules(shown: Shown) -> None:
    found, lines = shown
    assert lines == ["bruno: amount", "carla: places and count"]
    assert {alert["user"]: alert["total"] for alert in found} == {"bruno": 12_000, "carla": 125}


def test_sessions(shown: Shown) -> None:
    assert shown[1] == ["anna saw / /tea /cart", "anna saw / /orders", "bruno saw /"]


def test_etl_to_parquet(shown: Shown) -> None:
    found, lines = shown
    assert lines == ["40 lines in files, 20 of them errors"]
    numbers = sorted(int(row["text"].split()[1]) for row in found)
    assert numbers == [number for number in range(60) if number % 3]
    assert {row["host"] for row in found} == {"web-1"}


def test_devices(shown: Shown) -> None:
    (found, _), lines = shown
    assert lines == [
        "device-1: 72 to 75, 73.5 on average",
        "device-2: 90 to 94, 92 on average, critical",
        "too late: 20 of device-2",
    ]
    assert {row["device"]: row["pressure"] for row in found} == {
        "device-1": 14.75,
        "device-2": None,
    }


def test_stages(shown: Shown) -> None:
    assert shown[1] == ["FR: 10 clicks", "IT: 20 clicks"]


def test_plain_spark(shown: Shown) -> None:
    assert shown == (6, ["/tea was viewed 6 times"])


def test_every_example_is_run_and_listed() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert names == tested - {"every_example_is_run_and_listed"}
    listed = (FOLDER.parent / "README.md").read_text()
    assert all(f"| [{name}.py](spark/{name}.py) |" in listed for name in names)

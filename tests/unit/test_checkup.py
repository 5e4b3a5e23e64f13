"""Each finding of the doctor that can be told from numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queen.cli.operate.doctor import check_clock, check_expiry, check_spark, check_versions
from queen.service.admin.checkup import (
    check_bloat,
    check_connections,
    check_held,
    check_settings,
    check_skew,
    check_spool,
    check_storage,
)
from queen.service.spooling.desk import SpoolNumbers
from queen.service.stats.storage import Forecast, KeptQueue

_NOW = datetime(2026, 3, 1, tzinfo=UTC)
_GOOD = {
    "server_version": ("18.1", None),
    "fsync": ("on", None),
    "full_page_writes": ("on", None),
    "synchronous_commit": ("on", None),
    "autovacuum": ("on", None),
    "shared_buffers": ("131072", "8kB"),
    "max_wal_size": ("4096", "MB"),
    "max_connections": ("100", None),
}


def settings(**changed: tuple[str, str | None]) -> Any:
    return {
        name: {"setting": setting, "unit": unit}
        for name, (setting, unit) in {**_GOOD, **changed}.items()
    }


def test_good_settings_are_well() -> None:
    assert {finding.level for finding in check_settings(settings())} == {"ok"}


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("fsync", ("off", None), "problem"),
        ("full_page_writes", ("off", None), "problem"),
        ("synchronous_commit", ("off", None), "problem"),
        ("autovacuum", ("off", None), "problem"),
        ("shared_buffers", ("1024", "8kB"), "warning"),
        ("max_wal_size", ("100", "MB"), "warning"),
    ],
)
def test_a_bad_setting_is_found_with_what_to_do(
    name: str, value: tuple[str, str | None], level: str
) -> None:
    found = {finding.check: finding for finding in check_settings(settings(**{name: value}))}
    assert found[name].level == level
    assert found[name].advice
    assert [finding.level for finding in found.values()].count("ok") == len(found) - 1


@pytest.mark.parametrize(("used", "level"), [(10, "ok"), (75, "warning"), (95, "problem")])
def test_connections(used: int, level: str) -> None:
    state: Any = {"connections": used}
    assert check_connections(settings(), state).level == level


@pytest.mark.parametrize(("apart_s", "level"), [(0.1, "ok"), (-5, "warning"), (60, "problem")])
def test_clocks_that_differ(apart_s: float, level: str) -> None:
    assert check_skew("clock", _NOW, _NOW + timedelta(seconds=apart_s)).level == level


@pytest.mark.parametrize(
    ("oldest_s", "idle", "level"),
    [(1, 0, "ok"), (1, 1, "warning"), (600, 0, "warning"), (7200, 0, "problem")],
)
def test_held_transactions(oldest_s: float, idle: int, level: str) -> None:
    state: Any = {"idle_in_transaction": idle, "prepared": 0}
    assert check_held(oldest_s, state).level == level


def test_bloat() -> None:
    rows: Any = [{"table": "cursors", "dead": 50_000, "dead_ratio": 80.0}]
    finding = check_bloat(rows)
    assert finding.level == "warning"
    assert "VACUUM on queen.cursors" in finding.advice
    rows[0]["dead"] = 10
    assert check_bloat(rows).level == "ok"


_FORECAST = Forecast(
    at=_NOW,
    database_bytes=10**9,
    disk_path="/data",
    disk_total_bytes=10**12,
    disk_free_bytes=5 * 10**11,
    growth_bytes_per_day=10**9,
    observed_seconds=86400,
    days_until_full=500.0,
    keeping_count=1,
    keeping_bytes=10**9,
    keeping=[KeptQueue("orders", 10, 10**9, 10**9)],
)


@pytest.mark.parametrize(
    ("days", "free", "level"),
    [
        (500.0, 5 * 10**11, "ok"),
        (20.0, 5 * 10**11, "warning"),
        (3.0, 5 * 10**11, "problem"),
        (None, 10**10, "warning"),
        (None, None, "unknown"),
    ],
)
def test_a_disk_that_fills(days: float | None, free: int | None, level: str) -> None:
    forecast = replace(_FORECAST, days_until_full=days, disk_free_bytes=free)
    found = {finding.check: finding for finding in check_storage(forecast)}
    assert found["disk"].level == level


def test_queues_that_keep_everything_are_named() -> None:
    (retention, _) = check_storage(_FORECAST)
    assert retention.level == "warning"
    assert "orders" in retention.says
    assert "1 GB more a day" in retention.says
    assert "retentionSeconds" in retention.advice
    nobody = replace(_FORECAST, keeping_count=0, keeping=[])
    assert next(check_storage(nobody)).level == "ok"


@pytest.mark.parametrize(
    ("numbers", "breaker", "spool"),
    [
        (SpoolNumbers(True, False, 0), "ok", "ok"),
        (SpoolNumbers(True, True, 1, records=5), "problem", "ok"),
        (SpoolNumbers(False, False, 0), "ok", "warning"),
        (SpoolNumbers(True, False, 0, quarantined=2), "ok", "problem"),
        (SpoolNumbers(True, False, 0, problem="the disk is full"), "ok", "problem"),
    ],
)
def test_spool_and_breaker(numbers: SpoolNumbers, breaker: str, spool: str) -> None:
    found = {finding.check: finding.level for finding in check_spool(numbers)}
    assert (found["breaker"], found["spool"]) == (breaker, spool)


@pytest.mark.parametrize(("days", "level"), [(90, "ok"), (20, "warning"), (-1, "problem")])
def test_a_certificate_that_ends(days: int, level: str) -> None:
    ends = _NOW + timedelta(days=days, hours=1)
    assert check_expiry("certificate", ends, _NOW)["level"] == level


def test_versions_clocks_and_spark_of_this_machine() -> None:
    assert check_versions("99.0")["level"] == "warning"
    assert check_clock(_NOW, _NOW + timedelta(seconds=30))["level"] == "warning"
    assert check_spark("3.5.0")["level"] == "problem"
    assert check_spark(None)["level"] == "ok"

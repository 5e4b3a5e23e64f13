"""The check-up: what is wrong with a server and its database, and what to do about it.

Each check says what it sees; one that cannot look says so, and is no reason for alarm. A
`problem` is something that loses messages or stops the broker, now or soon; a `warning` is what
makes it slow, or a problem later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from queen import __version__
from queen.errors import QueenError
from queen.service.rows import Record
from queen.service.spooling.desk import SpoolDesk, SpoolNumbers
from queen.service.stats.reads import StoredNumbers
from queen.service.stats.storage import Forecast, Storage
from queen.storage.database import Database

Level = Literal["ok", "warning", "problem", "unknown"]

_SKEW_WARNING_S, _SKEW_PROBLEM_S = 1.0, 10.0
_HELD_WARNING_S, _HELD_PROBLEM_S = 300.0, 3600.0
_LEAST_BUFFERS_BYTES = 128 * 1024**2
_LEAST_WAL_BYTES = 1024**3
_BLOATED_ROWS, _BLOATED_PERCENT = 10_000, 50.0
_FULL_SOON_DAYS, _FULL_SOMETIME_DAYS = 7, 30
_LEAST_FREE = 0.1
_UNITS = {"8kB": 8192, "kB": 1024, "MB": 1024**2, "GB": 1024**3, "B": 1}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check says."""

    check: str
    level: Level
    says: str
    # What to do; empty when there is nothing to do.
    advice: str = ""


class Checkup:
    def __init__(
        self, database: Database, numbers: StoredNumbers, storage: Storage, spool: SpoolDesk
    ) -> None:
        self._database = database
        self._numbers = numbers
        self._storage = storage
        self._spool = spool

    async def findings(self) -> list[Finding]:
        """Look at everything; while the database is away, at what can be seen without it."""
        spool = await self._spool.numbers()
        findings = [Finding("server version", "ok", __version__), *check_spool(spool)]
        if spool.is_database_away:
            return findings
        try:
            return findings + await self._of_the_database()
        except QueenError as error:
            reason = f"the database could not be asked: {error.message}"
            return [*findings, Finding("database", "unknown", reason)]

    async def _of_the_database(self) -> list[Finding]:
        settings = {row["name"]: row for row in await self._database.fetch("doctor_settings")}
        before = datetime.now(UTC)
        state = await self._database.fetchrow("doctor_state")
        middle = before + (datetime.now(UTC) - before) / 2
        return [
            *check_settings(settings),
            check_connections(settings, state),
            check_skew("clock of the server and the database", middle, state["now"]),
            check_held(await self._numbers.oldest_snapshot_s(), state),
            check_bloat(await self._numbers.postgres("pg_dead_tuples")),
            *check_storage(await self._storage.forecast()),
            Finding("schema", "ok", str(state["schema_version"])),
        ]


def check_settings(settings: dict[str, Record]) -> Iterator[Finding]:
    """What PostgreSQL is set to."""
    version = _text(settings, "server_version")
    yield Finding("PostgreSQL", "ok" if version else "unknown", version or "not told")
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        value = _text(settings, name)
        good = value in ("on", "remote_apply", "remote_write", "local")
        advice = f"set {name} = on in postgresql.conf: what is confirmed can be lost in a crash"
        yield Finding(name, "ok" if good else "problem", value, "" if good else advice)
    value = _text(settings, "autovacuum")
    advice = "set autovacuum = on: without it tables grow for ever and then stop"
    good = value == "on"
    yield Finding("autovacuum", "ok" if good else "problem", value, "" if good else advice)
    yield _at_least(
        settings,
        "shared_buffers",
        _LEAST_BUFFERS_BYTES,
        "give it a quarter of the memory: set shared_buffers and restart PostgreSQL",
    )
    yield _at_least(
        settings,
        "max_wal_size",
        _LEAST_WAL_BYTES,
        "set max_wal_size = 4GB or more: checkpoints come too often",
    )


def _at_least(settings: dict[str, Record], name: str, least: int, advice: str) -> Finding:
    row = settings.get(name)
    if row is None:
        return Finding(name, "unknown", "not told")
    size = int(row["setting"]) * _UNITS.get(row["unit"] or "B", 1)
    shown = f"{size // 1024**2:,} MB"
    return Finding(name, "ok", shown) if size >= least else Finding(name, "warning", shown, advice)


def check_connections(settings: dict[str, Record], state: Record) -> Finding:
    """Whether there is room for more servers."""
    most, used = int(_text(settings, "max_connections") or 0), state["connections"]
    shown = f"{used:,} of {most:,}"
    if most and used > 0.9 * most:
        advice = "raise max_connections, or let fewer programs connect: the next ones are refused"
        return Finding("max_connections", "problem", shown, advice)
    if most and used > 0.7 * most:
        advice = "raise max_connections before another server is started"
        return Finding("max_connections", "warning", shown, advice)
    return Finding("max_connections", "ok", shown)


def check_skew(name: str, ours: datetime, theirs: datetime) -> Finding:
    """Whether two clocks say the same."""
    seconds = (theirs - ours).total_seconds()
    shown = f"{abs(seconds):.1f} s apart"
    if abs(seconds) < _SKEW_WARNING_S:
        return Finding(name, "ok", shown)
    advice = "let both machines follow NTP: times that people type and read are off by this"
    level: Level = "warning" if abs(seconds) < _SKEW_PROBLEM_S else "problem"
    return Finding(name, level, shown, advice)


def check_held(oldest_s: float, state: Record) -> Finding:
    """Whether somebody keeps PostgreSQL from cleaning up."""
    name, shown = "held transactions", f"the oldest is {oldest_s:,.0f} s old"
    if state["idle_in_transaction"]:
        shown += f", {state['idle_in_transaction']} idle for more than a minute"
    if state["prepared"]:
        shown += f", {state['prepared']} prepared"
    advice = (
        "find it in pg_stat_activity (or pg_prepared_xacts) and end it: dead rows pile up behind "
        "it and everything gets slower; set idle_in_transaction_session_timeout"
    )
    if oldest_s > _HELD_PROBLEM_S:
        return Finding(name, "problem", shown, advice)
    if oldest_s > _HELD_WARNING_S or state["idle_in_transaction"]:
        return Finding(name, "warning", shown, advice)
    return Finding(name, "ok", shown)


def check_bloat(rows: list[Record]) -> Finding:
    """Whether tables hold more dead rows than living ones."""
    bloated = [
        row for row in rows if row["dead"] > _BLOATED_ROWS and row["dead_ratio"] > _BLOATED_PERCENT
    ]
    if not bloated:
        return Finding("bloat", "ok", "no table has more dead rows than living ones")
    named = ", ".join(f"{row['table']} {row['dead_ratio']:.0f} % dead" for row in bloated[:3])
    advice = f"run VACUUM on queen.{bloated[0]['table']}, and see what holds autovacuum back"
    return Finding("bloat", "warning", named, advice)


def check_storage(forecast: Forecast) -> Iterator[Finding]:
    """Whether the disk lasts, and what is kept for ever."""
    sentence = forecast.sentence()
    advice = (
        "queen queue alter NAME -o retentionEnabled=true -o retentionSeconds=604800 keeps a week"
    )
    if sentence is None:
        yield Finding("retention", "ok", "every queue lets old messages go")
    else:
        yield Finding("retention", "warning", sentence, advice)
    yield _check_disk(forecast)


def _check_disk(forecast: Forecast) -> Finding:
    free, total, days = (
        forecast.disk_free_bytes,
        forecast.disk_total_bytes,
        forecast.days_until_full,
    )
    if free is None or not total:
        return Finding("disk", "unknown", "the database is on another machine: look there")
    shown = f"{free / 1e9:,.1f} GB free of {total / 1e9:,.1f} GB in {forecast.disk_path}"
    advice = "set retention on queues that keep everything, or make room"
    if days is not None and days < _FULL_SOMETIME_DAYS:
        level: Level = "problem" if days < _FULL_SOON_DAYS else "warning"
        return Finding("disk", level, f"{shown}, full in {days:,.0f} days", advice)
    if free < _LEAST_FREE * total:
        return Finding("disk", "warning", shown, advice)
    return Finding("disk", "ok", shown)


def check_spool(spool: SpoolNumbers) -> Iterator[Finding]:
    """Whether the database is there, and what waits for it."""
    if spool.is_database_away:
        advice = "see that PostgreSQL runs and can be reached; pushes wait in the spool until then"
        yield Finding("breaker", "problem", "open: the database does not answer", advice)
    else:
        shown = f"closed; opened {spool.outages} times since the start"
        yield Finding("breaker", "ok", shown)
    if not spool.is_there:
        advice = "give the server a folder with --spool-dir: pushes fail while the database is away"
        yield Finding("spool", "warning", "there is none", advice)
        return
    waiting = f"{spool.records:,} records wait"
    if spool.quarantined or spool.damaged:
        shown = f"{spool.quarantined:,} refused, {spool.damaged:,} damaged, {waiting}"
        yield Finding("spool", "problem", shown, "queen spool list says why, and what to do")
    elif spool.problem:
        advice = "it is tried again by itself; the reason has to go away first"
        yield Finding("spool", "problem", f"not drained: {spool.problem}", advice)
    else:
        yield Finding("spool", "ok", waiting if spool.records else "empty")


def _text(settings: dict[str, Record], name: str) -> str:
    row = settings.get(name)
    return "" if row is None else str(row["setting"])

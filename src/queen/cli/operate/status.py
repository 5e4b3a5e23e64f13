"""`queen status`: what needs somebody first, then the rest."""

from __future__ import annotations

import asyncio
import shlex
import sys
from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.cells import as_bytes, as_duration
from queen.cli.connection import with_queen
from queen.cli.exits import until_interrupted
from queen.cli.output import Output, draw
from queen.cli.paging import read_pages
from queen.cli.tables import (
    Column,
    dim,
    problem_lines,
    record_lines,
    table_lines,
    terminal_size,
    wrap,
)
from queen.cli.terminal.group_names import shown_name
from queen.cli.terminal.printable import printable
from queen.client import Queen
from queen.errors import NotFound

# As the server sees it: a group is lagging when it is behind by more than five minutes.
_LAGGING_S = 300
_SHOWN = 10
_FULL_SOON_DAYS = 30
_ADVICE = "queen queue alter NAME -o retentionEnabled=true -o retentionSeconds=604800 keeps a week"

_LAGGING = (
    Column("lagging group", "group"),
    Column("queue", "queue"),
    Column("unread", "unread", "number"),
    Column("oldest", "oldestSeconds", "duration"),
    Column("paused", "paused"),
)

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
Every = Annotated[float, typer.Option("--every", min=0.1, help="Seconds between two looks.")]


def status(
    watch: Watch = False,
    every: Every = 2.0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show problems first: spool, maintenance, lagging groups, dead letters, oldest unread."""
    output = Output(as_json)

    async def work(queen: Queen) -> None:
        _print(output, await _take_snapshot(queen), clear=watch)
        while watch:
            await asyncio.sleep(every)
            _print(output, await _take_snapshot(queen), clear=True)

    with until_interrupted():
        with_queen(url, token, work)


async def _take_snapshot(queen: Queen) -> dict[str, Any]:
    spool = await queen.admin.spool()
    if spool["database"] == "away":
        # Nobody else can be asked now.
        return _only_of_the_spool(spool)
    overview, groups, switches, storage = await asyncio.gather(
        queen.admin.overview(), _groups(queen), queen.admin.maintenance(), _storage(queen)
    )
    lagging = [
        _lagging_row(group)
        for group in groups
        if group["maxTimeLag"] > _LAGGING_S or group["paused"] or group["breakerOpenSince"]
    ]
    lagging.sort(key=lambda row: -float(row["oldestSeconds"]))
    snapshot = {
        "problems": [],
        **_of_the_spool(spool),
        "maintenance": switches["maintenanceMode"],
        "popMaintenance": switches["popMaintenanceMode"],
        "laggingGroups": lagging,
        "deadLetters": overview["messages"]["deadLetter"],
        "oldestUnreadSeconds": _oldest_unread_s(overview),
        "pending": overview["messages"]["pending"],
        "processing": overview["messages"]["processing"],
        "pushedPerSecond": overview["throughput"]["ingestedPerSecond"],
        "donePerSecond": overview["throughput"]["processedPerSecond"],
        "queues": overview["queues"],
        "partitions": overview["partitions"],
        "groups": len(groups),
        "storedBytes": overview["storedBytes"],
        **_of_the_disk(storage),
        "statsAge": overview["statsAge"],
    }
    return {**snapshot, "problems": _problems(snapshot)}


async def _groups(queen: Queen) -> list[dict[str, Any]]:
    async def read(size: int, start: int) -> Any:
        return await queen.admin.groups(limit=size, offset=start)

    return await read_pages(read, None, 0)


def _oldest_unread_s(overview: dict[str, Any]) -> float | None:
    """Return for how long the oldest message has waited for a group; how long those have waited
    that no group reads is not known."""
    longest: float = overview["lag"]["time"]["max"]
    return None if not longest and overview["messages"]["pending"] else longest


async def _storage(queen: Queen) -> dict[str, Any]:
    """What is stored for ever; nothing for a token that sees some namespaces only."""
    try:
        storage: dict[str, Any] = await queen.admin.storage()
    except NotFound:
        return {}
    return storage


def _of_the_disk(storage: dict[str, Any]) -> dict[str, Any]:
    disk = storage.get("disk") or {}
    return {
        "keptForEver": [queue["name"] for queue in storage.get("queues", ())],
        "bytesKeptForEver": storage.get("bytesKeptForEver"),
        "growthBytesPerDay": storage.get("growthBytesPerDay"),
        "diskFreeBytes": disk.get("freeBytes"),
        "daysUntilFull": storage.get("daysUntilFull"),
        "retention": storage.get("sentence"),
    }


def _of_the_spool(spool: dict[str, Any]) -> dict[str, Any]:
    return {
        "database": spool["database"],
        "spooled": spool["records"],
        "spoolOldestAt": spool["oldestAt"],
        "spoolQuarantined": spool["quarantined"],
        "spoolProblem": spool["problem"],
    }


def _only_of_the_spool(spool: dict[str, Any]) -> dict[str, Any]:
    """What can be said while the database is away."""
    snapshot = {**_of_the_spool(spool), "laggingGroups": []}
    return {"problems": _spool_problems(snapshot), **snapshot}


def _spool_problems(snapshot: dict[str, Any]) -> list[str]:
    problems = []
    if snapshot["database"] == "away":
        waiting = f"{snapshot['spooled']:,} wait"
        problems.append(f"the database is away: pushes go to the spool ({waiting})")
    elif snapshot["spoolProblem"]:
        problems.append(f"the spool is not drained: {snapshot['spoolProblem']}")
    if snapshot["spoolQuarantined"]:
        count = f"{snapshot['spoolQuarantined']:,}"
        problems.append(f"{count} spooled records cannot be stored: queen spool list")
    return problems


def _lagging_row(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": entry["name"],
        "queue": entry["queueName"],
        "unread": entry["totalLag"],
        "oldestSeconds": entry["maxTimeLag"],
        "paused": entry["paused"],
        "breakerOpenSince": entry["breakerOpenSince"],
    }


def _problems(snapshot: dict[str, Any]) -> list[str]:
    """Say what is wrong, each with what to do next."""
    problems = _spool_problems(snapshot)
    if snapshot["maintenance"]:
        problems.append("pushes are held back: maintenance is on")
    if snapshot["popMaintenance"]:
        problems.append("consumers get nothing: pop maintenance is on")
    for lagging in snapshot["laggingGroups"][:_SHOWN]:
        name, state = shown_name(lagging["group"]), _state_of(lagging)
        look = f"queen group show {shlex.quote(name)}"
        problems.append(f"group {name} {state} in {lagging['queue']}: {look}")
    days = snapshot["daysUntilFull"]
    if days is not None and days < _FULL_SOON_DAYS:
        problems.append(f"the disk is full in {days:,.0f} days: set retention, or make room")
    if snapshot["deadLetters"]:
        problems.append(f"{snapshot['deadLetters']:,} dead letters: queen dlq errors")
    return problems


def _state_of(lagging: dict[str, Any]) -> str:
    if lagging["paused"]:
        return "is paused"
    if lagging["breakerOpenSince"]:
        return "is paused by its breaker, because nearly everything failed,"
    return f"is {as_duration(lagging['oldestSeconds'])} behind"


def _print(output: Output, snapshot: dict[str, Any], *, clear: bool) -> None:
    if not output.is_table:
        output.lines([snapshot])
        return
    # What is looked at again and again is cut to the screen: a long name would push it off.
    lines = _lines(snapshot, fold=clear)
    if not clear:
        draw(lines)
        return
    # From the top, and no further than the last line: whatever scrolls away is the problems.
    _, height = terminal_size()
    most = height - 1
    if len(lines) > most:
        lines = [*lines[: most - 1], dim(f"{len(lines) - most + 1} more lines: queen status")]
    sys.stdout.write("\x1b[H\x1b[2J" + "\n".join(lines) + "\n")
    sys.stdout.flush()


def _lines(snapshot: dict[str, Any], *, fold: bool) -> list[str]:
    """Return what a person sees: problems, who lags, what is kept for ever, numbers."""
    lines = problem_lines(snapshot["problems"], fold=fold)
    if snapshot["laggingGroups"]:
        lines += ["", *table_lines(snapshot["laggingGroups"][:_SHOWN], _LAGGING)]
    width, _ = terminal_size()
    if snapshot.get("retention"):
        lines += ["", *wrap(printable(f"{snapshot['retention']}; {_ADVICE}"), width)]
    return [*lines, "", *record_lines(_numbers(snapshot), fold=fold)]


def _numbers(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers, those that belong together on one line."""
    if "queues" not in snapshot:
        left_out = {"problems", "laggingGroups"}
        return {key: value for key, value in snapshot.items() if key not in left_out}
    free, days = snapshot["diskFreeBytes"], snapshot["daysUntilFull"]
    return {
        "database": snapshot["database"],
        "messages": f"{snapshot['pending']:,} pending, {snapshot['processing']:,} processing, "
        f"{snapshot['deadLetters']:,} dead letters",
        "rates": f"{snapshot['pushedPerSecond']:,.1f} pushed and "
        f"{snapshot['donePerSecond']:,.1f} done a second",
        "oldest unread by a group": as_duration(snapshot["oldestUnreadSeconds"]),
        "there are": f"{snapshot['queues']:,} queues, {snapshot['partitions']:,} partitions, "
        f"{snapshot['groups']:,} groups",
        "stored": as_bytes(snapshot["storedBytes"]),
        "growth": f"{as_bytes(snapshot['growthBytesPerDay'])} a day kept for ever",
        "disk": f"{as_bytes(free)} free" + ("" if days is None else f", full in {days:,.0f} days"),
        "spool": f"{snapshot['spooled']:,} records wait, {snapshot['spoolQuarantined']:,} refused",
        "maintenance": _switches(snapshot),
    }


def _switches(snapshot: dict[str, Any]) -> str:
    held = [
        name
        for name, key in (("pushes", "maintenance"), ("pops", "popMaintenance"))
        if snapshot[key]
    ]
    return f"{' and '.join(held)} held back" if held else "off"

"""`queen status`: what needs somebody first, then the rest."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import until_interrupted
from queen.cli.output import Output, draw, record_table, table_of
from queen.client import Queen

# As the server sees it: a group is lagging when it is behind by more than five minutes.
_LAGGING_S = 300
_SHOWN = 10

_LAGGING = (
    ("lagging group", "group"),
    ("queue", "queue"),
    ("unread", "unread"),
    ("oldest, s", "oldestSeconds"),
    ("paused", "paused"),
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
    overview, groups, switches = await asyncio.gather(
        queen.admin.overview(), queen.admin.groups(), queen.admin.maintenance()
    )
    lagging = [
        _lagging_row(group)
        for group in groups
        if group["maxTimeLag"] > _LAGGING_S or group["paused"]
    ]
    lagging.sort(key=lambda row: -float(row["oldestSeconds"]))
    snapshot = {
        "problems": [],
        **_of_the_spool(spool),
        "maintenance": switches["maintenanceMode"],
        "popMaintenance": switches["popMaintenanceMode"],
        "laggingGroups": lagging,
        "deadLetters": overview["messages"]["deadLetter"],
        "oldestUnreadSeconds": overview["lag"]["time"]["max"],
        "pending": overview["messages"]["pending"],
        "processing": overview["messages"]["processing"],
        "pushedPerSecond": overview["throughput"]["ingestedPerSecond"],
        "donePerSecond": overview["throughput"]["processedPerSecond"],
        "queues": overview["queues"],
        "partitions": overview["partitions"],
        "groups": len(groups),
        "storedBytes": overview["storedBytes"],
        "statsAge": overview["statsAge"],
    }
    return {**snapshot, "problems": _problems(snapshot)}


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
    }


def _problems(snapshot: dict[str, Any]) -> list[str]:
    """Say what is wrong, each with what to do next."""
    problems = _spool_problems(snapshot)
    if snapshot["maintenance"]:
        problems.append("pushes are held back: maintenance is on")
    if snapshot["popMaintenance"]:
        problems.append("consumers get nothing: pop maintenance is on")
    for lagging in snapshot["laggingGroups"][:_SHOWN]:
        state = "is paused" if lagging["paused"] else f"is {lagging['oldestSeconds']:,.0f} s behind"
        problems.append(f"group {lagging['group']} {state} in {lagging['queue']}: queen group show")
    if snapshot["deadLetters"]:
        problems.append(f"{snapshot['deadLetters']:,} dead letters: queen dlq errors QUEUE")
    return problems


def _print(output: Output, snapshot: dict[str, Any], *, clear: bool) -> None:
    if not output.is_table:
        output.lines([snapshot])
        return
    from rich.text import Text

    if clear:
        sys.stdout.write("\x1b[H\x1b[2J")
    lines = snapshot["problems"] or ["no problems"]
    style = "bold red" if snapshot["problems"] else "green"
    rest = {
        key: value for key, value in snapshot.items() if key not in {"problems", "laggingGroups"}
    }
    draw(*(Text(line, style=style) for line in lines))
    if snapshot["laggingGroups"]:
        draw(table_of(snapshot["laggingGroups"][:_SHOWN], _LAGGING))
    draw(record_table(rest))

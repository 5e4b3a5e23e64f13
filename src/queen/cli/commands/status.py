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
    """Show problems first: maintenance, lagging groups, dead letters, the oldest unread."""
    output = Output(as_json)

    async def work(queen: Queen) -> None:
        _print(output, await _look(queen), clear=watch)
        while watch:
            await asyncio.sleep(every)
            _print(output, await _look(queen), clear=True)

    with until_interrupted():
        with_queen(url, token, work)


async def _look(queen: Queen) -> dict[str, Any]:
    overview, groups, held = await asyncio.gather(
        queen.admin.overview(), queen.admin.groups(), queen.admin.maintenance()
    )
    lagging = [_lagging(one) for one in groups if one["maxTimeLag"] > _LAGGING_S or one["paused"]]
    lagging.sort(key=lambda one: -float(one["oldestSeconds"]))
    found = {
        "problems": [],
        "maintenance": held["maintenanceMode"],
        "popMaintenance": held["popMaintenanceMode"],
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
    return {**found, "problems": _problems(found)}


def _lagging(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": entry["name"],
        "queue": entry["queueName"],
        "unread": entry["totalLag"],
        "oldestSeconds": entry["maxTimeLag"],
        "paused": entry["paused"],
    }


def _problems(found: dict[str, Any]) -> list[str]:
    """Say what is wrong, each with what to do next."""
    problems = []
    if found["maintenance"]:
        problems.append("pushes are held back: maintenance is on")
    if found["popMaintenance"]:
        problems.append("consumers get nothing: pop maintenance is on")
    for one in found["laggingGroups"][:_SHOWN]:
        state = "is paused" if one["paused"] else f"is {one['oldestSeconds']:,.0f} s behind"
        problems.append(f"group {one['group']} {state} in {one['queue']}: queen group show")
    if found["deadLetters"]:
        problems.append(f"{found['deadLetters']:,} dead letters: queen dlq errors QUEUE")
    return problems


def _print(output: Output, found: dict[str, Any], *, clear: bool) -> None:
    if not output.is_table:
        output.lines([found])
        return
    from rich.text import Text

    if clear:
        sys.stdout.write("\x1b[H\x1b[2J")
    said = found["problems"] or ["no problems"]
    style = "bold red" if found["problems"] else "green"
    rest = {key: value for key, value in found.items() if key not in {"problems", "laggingGroups"}}
    draw(*(Text(one, style=style) for one in said))
    if found["laggingGroups"]:
        draw(table_of(found["laggingGroups"][:_SHOWN], _LAGGING))
    draw(record_table(rest))

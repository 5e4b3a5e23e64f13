"""`queen schedule`: messages that wait for their time, and those that come again and again."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from queen.cli import options as cli
from queen.cli.connection import check_is_there, with_queen
from queen.cli.exits import USAGE, confirm, fail, say
from queen.cli.output import Output
from queen.cli.tables import Column
from queen.client import Queen
from queen.core.tasks.cron import parse_zone


class CatchUp(StrEnum):
    NONE = "none"
    LAST = "last"
    ALL = "all"


schedule = typer.Typer(
    help="Push by the calendar; look at scheduled messages, and take them back.",
    no_args_is_help=True,
)

_COLUMNS = (
    Column("due", "deliverAt", "age"),
    Column("queue", "queue"),
    Column("transaction id", "transactionId"),
    Column("partition", "partition"),
    Column("bytes", "payloadBytes", "bytes"),
    Column("scheduled", "scheduledAt", "age"),
)

_CRON_COLUMNS = (
    Column("schedule", "name"),
    Column("state", "state"),
    Column("cron", "cron"),
    Column("zone", "zone"),
    Column("queue", "queue"),
    Column("next", "nextAt", "age"),
    Column("last", "lastAt", "age"),
    Column("pushed", "ticks", "number"),
    Column("missed", "missed", "number"),
)
_LOCAL = "%a %Y-%m-%d %H:%M %Z"
_TICK_COLUMNS = (Column("here", "local"), Column("UTC", "at"))

Name = Annotated[str, typer.Argument(metavar="NAME", help="A schedule: `schedule list --cron`.")]
Cron = Annotated[
    str, typer.Argument(help="minute hour day month weekday, in quotes: '30 3 * * MON-FRI'.")
]
Zone = Annotated[str, typer.Option(help="The time zone of these, as Europe/Berlin.")]
ByCron = Annotated[bool, typer.Option("--cron", help="What comes again and again, by name.")]
Partition = Annotated[
    str | None, typer.Option("--partition", "-p", help="Of the queue; `Default` unless given.")
]
Count = Annotated[int, typer.Option(min=1, max=100, help="How many times to show.")]
TransactionId = Annotated[str, typer.Argument(help="What it was pushed with: `schedule list`.")]


@schedule.command("list")
def list_scheduled(
    queue: cli.OfQueue = None,
    by_cron: ByCron = False,
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the messages that are not due yet, soonest first; or, with --cron, what is pushed again
    and again."""
    if by_cron:
        answer = with_queen(
            url, token, lambda queen: queen.admin.schedules(queue, limit=limit, offset=offset)
        )
        Output(as_json).rows(answer["schedules"], _CRON_COLUMNS)
        return

    async def work(queen: Queen) -> Any:
        page = await queen.admin.scheduled(queue, limit=limit, offset=offset)
        if queue is not None and not page["scheduled"]:
            # A queue may come with its first scheduled message; without one it must be there.
            await check_is_there(queen, queue)
        return page

    page = with_queen(url, token, work)
    Output(as_json).rows(page["scheduled"], _COLUMNS)
    if page["more"]:
        say(f"there are more than {limit:,}; --limit and --offset show others")


@schedule.command()
def cancel(
    queue: cli.QueueName,
    transaction_id: TransactionId,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Take back a message whose time has not come."""
    answer = with_queen(
        url, token, lambda queen: queen.admin.cancel_scheduled(queue, transaction_id)
    )
    Output(as_json).record(answer)


# ---- again and again ----


@schedule.command()
def create(
    name: Name,
    queue: cli.QueueName,
    cron: Cron,
    payload: Annotated[str, typer.Argument(help="What each message holds: JSON.")] = "null",
    zone: Zone = "UTC",
    partition: Partition = None,
    catch_up: Annotated[
        CatchUp, typer.Option(help="What becomes of times that no server was there for.")
    ] = CatchUp.LAST,
    catch_up_limit: Annotated[
        int, typer.Option(min=1, max=1000, help="How many `all` is at most.")
    ] = 100,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of one that differs.")
    ] = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Push a payload again and again, by the calendar of a time zone."""
    try:
        value = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        fail(USAGE, f"the payload is not JSON: {error}")
    answer = with_queen(
        url,
        token,
        lambda queen: queen.admin.define_schedule(
            name,
            queue,
            cron,
            value,
            zone=zone,
            partition=partition,
            catch_up=catch_up.value,
            catch_up_limit=catch_up_limit,
            replace=replace,
        ),
    )
    Output(as_json).record(answer)


@schedule.command()
def show(
    name: Name, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Show a schedule, and how it is doing."""
    Output(as_json).record(with_queen(url, token, lambda queen: queen.admin.schedule(name)))


@schedule.command("next")
def next_ticks(
    name: Name,
    count: Count = 10,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show when a schedule comes due next."""

    async def work(queen: Queen) -> Any:
        stored = await queen.admin.schedule(name)
        return stored["zone"], await queen.admin.schedule_ticks(name, count)

    zone_name, answer = with_queen(url, token, work)
    zone = parse_zone(zone_name)
    rows = [
        {
            "at": tick,
            "local": f"{datetime.fromisoformat(tick).astimezone(zone):%a %Y-%m-%d %H:%M %Z}",
        }
        for tick in answer["ticks"]
    ]
    Output(as_json).rows(rows, _TICK_COLUMNS)


@schedule.command()
def pause(
    name: Name, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Let a schedule rest."""
    Output(as_json).record(with_queen(url, token, lambda queen: queen.admin.pause_schedule(name)))


@schedule.command()
def resume(
    name: Name, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Let a schedule go on with its next time; what it has missed is not made up."""
    Output(as_json).record(with_queen(url, token, lambda queen: queen.admin.resume_schedule(name)))


@schedule.command()
def delete(
    name: Name,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Delete a schedule; what it has pushed stays."""
    confirm(yes, f"Delete the schedule {name}?")
    Output(as_json).record(with_queen(url, token, lambda queen: queen.admin.delete_schedule(name)))

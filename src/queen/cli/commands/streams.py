"""`queen stream`: define streams, and see what their windows do, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import NOT_FOUND, confirm, fail, say
from queen.cli.output import Output, draw
from queen.cli.paging import read_pages
from queen.cli.tables import Column, record_lines, table_lines
from queen.cli.times import parse_duration, parse_time
from queen.client import Queen
from queen.client.streams.builder import Stream

stream = typer.Typer(
    help="Define streams, look at their windows and groups, move and retry.", no_args_is_help=True
)

_COLUMNS = (
    Column("stream", "name"),
    Column("windows", "windowType"),
    Column("groups", "consumerGroups", "number"),
    Column("leases", "activeLeases", "number"),
    Column("planned until", "plannedUntil", "age"),
    Column("sources", "sourceQueues"),
    Column("partitioned", "partitioned"),
)
_GROUPS = (
    Column("group", "consumerGroup"),
    Column("done", "totalWindowsConsumed", "number"),
    Column("waiting", "waiting", "number"),
    Column("leased", "leased", "number"),
    Column("retrying", "retrying", "number"),
    Column("dead", "dead", "number"),
    Column("behind", "behindSeconds", "duration"),
    Column("paused", "paused"),
    Column("last", "lastAckedWindowEnd", "age"),
)
_WINDOWS = (
    Column("key", "key"),
    Column("start", "start", "time"),
    Column("end", "end", "time"),
    Column("messages", "messages", "number"),
    Column("bytes", "bytes", "bytes"),
)
_GROUP_WINDOWS = (
    *_WINDOWS,
    Column("state", "state"),
    Column("attempts", "attempts", "number"),
    Column("consumer", "consumer"),
    Column("leased until", "leaseExpiresAt", "age"),
    Column("retry at", "retryAt", "age"),
    Column("error", "error"),
)
_KEYS = (
    Column("key", "key"),
    Column("state", "state"),
    Column("start", "start", "time"),
    Column("end", "end", "time"),
    Column("why", "why"),
)
_DEAD = (
    Column("failed", "failedAt", "age"),
    Column("group", "consumerGroup"),
    Column("key", "key"),
    Column("error", "error"),
    Column("attempts", "attempts", "number"),
    Column("start", "start", "time"),
    Column("end", "end", "time"),
    Column("messages", "messages", "number"),
    Column("window", "id"),
)

_LENGTH = "seconds, or 90s, 15m, 2h, 7d."

Sources = Annotated[list[str], typer.Argument(metavar="QUEUE...", help="What is cut into windows.")]
Namespace = Annotated[str, typer.Option(help="Its namespace.")]
Partitioned = Annotated[
    bool, typer.Option("--partitioned", help="Windows of its own for each partition.")
]
Tumbling = Annotated[
    str | None, typer.Option(help=f"Windows of this length, one after the other: {_LENGTH}")
]
Sliding = Annotated[str | None, typer.Option(help="Windows of this length, one every --slide.")]
Session = Annotated[
    str | None, typer.Option(help="Windows that end when nothing came for so long.")
]
Count = Annotated[int | None, typer.Option(min=1, help="Windows of so many messages.")]
Slide = Annotated[str | None, typer.Option(help="A new window every so long, or so many messages.")]
Grace = Annotated[str | None, typer.Option(help="How long a window waits after its end.")]
Lease = Annotated[str | None, typer.Option(help="How long a consumer has a window.")]
RetryLimit = Annotated[int | None, typer.Option(min=0, help="How often a window is retried.")]
RetryDelay = Annotated[str | None, typer.Option(help="How long the first retry waits.")]
InFlight = Annotated[
    int | None, typer.Option("--max-in-flight", min=1, help="Windows of a key leased at once.")
]
EmitEmpty = Annotated[bool, typer.Option("--emit-empty", help="Windows without messages too.")]
Recut = Annotated[
    bool, typer.Option("--recut", help="Cut all windows again when the change asks for it.")
]
OfKey = Annotated[str | None, typer.Option("--key", "-k", help="Only this key.")]
State = Annotated[
    str | None,
    typer.Option(help="Only in this state: planned, waiting, ready, leased, retrying, done, dead."),
]
To = Annotated[str, typer.Option(help="beginning, now, or a time: ISO-8601, or 15m, 2h, 7d ago.")]
WindowId = Annotated[str | None, typer.Option("--window", "-w", help="Only the window of this id.")]


@stream.command("list")
def list_streams(
    limit: cli.AllOr = None,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the streams."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> Any:
            return (await queen.admin.streams(limit=size, offset=start))["streams"]

        return await read_pages(read, limit, offset)

    Output(as_json).rows(with_queen(url, token, work), _COLUMNS)


@stream.command()
def show(
    name: cli.StreamName,
    limit: cli.Limit = 100,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show one stream: what it is, and how far its groups are."""

    async def work(queen: Queen) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        asked = queen.stream(name)
        return await asked.show(), await asked.consumers(limit=limit)

    (state, groups), output = with_queen(url, token, work), Output(as_json)
    if output.is_table:
        draw(record_lines(state), table_lines(groups, _GROUPS))
    else:
        output.record({**state, "consumers": groups})
    if len(groups) == limit:
        say("these may not be all groups: --limit shows more")


@stream.command()
def define(
    name: cli.StreamName,
    sources: Sources,
    namespace: Namespace = "",
    partitioned: Partitioned = False,
    tumbling: Tumbling = None,
    sliding: Sliding = None,
    session: Session = None,
    count: Count = None,
    slide: Slide = None,
    grace: Grace = None,
    lease: Lease = None,
    retry_limit: RetryLimit = None,
    retry_delay: RetryDelay = None,
    in_flight: InFlight = None,
    emit_empty: EmitEmpty = False,
    recut: Recut = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Define a stream, or replace its definition; what is not given has its default.

    One of --tumbling, --sliding, --session and --count says how it is cut; tumbling windows of a
    minute unless given.
    """
    numbers = {
        "grace_period": _seconds("--grace", grace),
        "lease_timeout": _seconds("--lease", lease),
        "retry_limit": retry_limit,
        "retry_delay": _seconds("--retry-delay", retry_delay),
        "max_in_flight": in_flight,
    }
    cut = _cut(tumbling, sliding, session, count, slide)

    async def work(queen: Queen) -> dict[str, Any]:
        builder = queen.stream(name, namespace).sources(sources).partitioned(partitioned)
        builder = builder.emit_empty(emit_empty)
        for setter, value in {**numbers, **cut}.items():
            if value is not None:
                given = value if isinstance(value, tuple) else (value,)
                builder = getattr(builder, setter)(*given)
        return await builder.define(recut=recut)

    Output(as_json).record(with_queen(url, token, work))


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else parse_duration(option, text)


def _cut(
    tumbling: str | None,
    sliding: str | None,
    session: str | None,
    count: int | None,
    slide: str | None,
) -> dict[str, Any]:
    """Return the setter of the kind of windows that was asked for, and what it takes."""
    given = [option for option in (tumbling, sliding, session, count) if option is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "a stream has one kind of windows", param_hint="--tumbling/--sliding/--session/--count"
        )
    if (slide is not None) != (sliding is not None) and count is None:
        raise typer.BadParameter("goes with --sliding or --count", param_hint="--slide")
    if tumbling is not None:
        return {"tumbling_time": parse_duration("--tumbling", tumbling)}
    if session is not None:
        return {"session": parse_duration("--session", session)}
    if sliding is not None:
        size = parse_duration("--sliding", sliding)
        return {"sliding_time": (size, parse_duration("--slide", slide or ""))}
    if count is not None:
        if slide is not None and not slide.isdecimal():
            raise typer.BadParameter(f"{slide!r} is no number of messages", param_hint="--slide")
        return {"count": (count, None if slide is None else int(slide))}
    return {}


@stream.command()
def windows(
    name: cli.StreamName,
    group: cli.OfStreamGroup = None,
    key: OfKey = None,
    state: State = None,
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the windows of a stream; with --group what state they are in for it."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> Any:
            stream = queen.stream(name)
            return await stream.windows(group, key=key, state=state, limit=size, offset=start)

        return await read_pages(read, limit, offset)

    rows = with_queen(url, token, work)
    Output(as_json).rows(rows, _WINDOWS if group is None else _GROUP_WINDOWS)


@stream.command()
def explain(
    name: cli.StreamName,
    group: cli.OfStreamGroup = None,
    key: OfKey = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Say why there is no window now, and when the next one comes."""
    answer = with_queen(url, token, lambda queen: queen.stream(name).explain(group, key=key))
    output = Output(as_json)
    if not output.is_table:
        output.record(answer)
        return
    keys = answer.pop("keys")
    draw(record_lines(answer), table_lines(keys, _KEYS))


@stream.command()
def seek(
    name: cli.StreamName,
    group: cli.StreamGroupName,
    to: To,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Move a group in a stream: the window of that time is its next one."""
    target = to if to in ("beginning", "now") else parse_time("--to", to)

    async def work(queen: Queen) -> None:
        known = await queen.stream(name).consumers(limit=1000)
        if group not in {row["consumerGroup"] for row in known}:
            fail(NOT_FOUND, f"{name} has no group {group}: `queen stream show {name}` lists them")
        await queen.stream(name).seek(group, target)

    with_queen(url, token, work)
    if as_json:
        Output(True).record({"stream": name, "group": group, "to": target})
    say(f"{group} goes on from {target}")


@stream.command()
def pause(
    name: cli.StreamName,
    group: cli.StreamGroupName,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Give a group no windows until it is resumed."""
    _switch("pause", name, group, url, token, as_json)


@stream.command()
def resume(
    name: cli.StreamName,
    group: cli.StreamGroupName,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Give windows to a paused group again."""
    _switch("resume", name, group, url, token, as_json)


def _switch(
    verb: str, name: str, group: str, url: str | None, token: str | None, as_json: bool
) -> None:
    async def work(queen: Queen) -> None:
        await getattr(queen.stream(name), verb)(group)

    with_queen(url, token, work)
    Output(as_json).record({"stream": name, "group": group, "paused": verb == "pause"})


@stream.command()
def delete(
    name: cli.StreamName,
    group: cli.OfStreamGroup = None,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Delete a stream, or with --group what one group knows of it; the queues stay."""
    target = f"the stream {name}" if group is None else f"the group {group} of {name}"
    confirm(yes, f"Delete {target}?")

    async def work(queen: Queen) -> bool:
        named: Stream = queen.stream(name)
        return await (named.delete() if group is None else named.delete_group(group))

    if not with_queen(url, token, work):
        fail(NOT_FOUND, f"{target} is not there: `queen stream list` shows what there is")
    if as_json:
        Output(True).record({"deleted": True, "stream": name, "group": group})
    say(f"deleted {target}")


@stream.command()
def dead(
    name: cli.StreamName,
    group: cli.OfStreamGroup = None,
    limit: cli.Limit = 100,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the windows that groups have given up on, and why."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> Any:
            return await queen.stream(name).dead(group, limit=size, offset=start)

        return await read_pages(read, limit, offset)

    rows = with_queen(url, token, work)
    Output(as_json).rows(rows, _DEAD)


@stream.command()
def retry(
    name: cli.StreamName,
    group: cli.StreamGroupName,
    window: WindowId = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Hand out dead windows of a group again, all or one."""
    retried = with_queen(url, token, lambda queen: queen.stream(name).retry_dead(group, window))
    Output(as_json).record({"stream": name, "group": group, "retried": retried})

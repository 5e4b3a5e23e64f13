"""`queen window tail`: windows as a consumer gets them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.exits import say, until_interrupted
from queen.cli.following import FORGET_S, Ack, From, parse_start
from queen.cli.message_rows import payload_text, row_of_stored
from queen.cli.output import Output
from queen.client import Queen, Window
from queen.client.streams.consumer import StreamConsumer
from queen.errors import LeaseLost, NotFound, QueenError

window = typer.Typer(help="Follow the windows of a stream.", no_args_is_help=True)

_WAIT_S = 30.0

Messages = Annotated[bool, typer.Option("--messages", "-m", help="Print their messages too.")]
Limit = Annotated[int | None, typer.Option(min=1, help="End after so many windows.")]


@window.command()
def tail(
    stream: cli.StreamName,
    group: cli.OfStreamGroup = None,
    start: From = None,
    ack: Ack = True,
    messages: Messages = False,
    limit: Limit = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Follow the windows of a stream until Ctrl-C, one line each.

    With --group they are that group's, and done once printed; with --no-ack they are kept until
    the end and then given back. Without --group, a group is made for this and deleted at the end:
    nobody else misses anything.
    """
    begin = parse_start(group, start, "queen stream seek")
    printer = WindowPrinter(Output(as_json), with_messages=messages)

    async def work(queen: Queen) -> None:
        consumer = queen.consumer(stream, begin.group).large().named("queen window tail")
        try:
            await _follow(begin.apply_to(consumer), printer, limit, ack)
        finally:
            if begin.is_own_group:
                await _forget(queen, stream, begin.group)

    with until_interrupted():
        with_queen(url, token, work)


async def _forget(queen: Queen, stream: str, group: str) -> None:
    try:
        async with asyncio.timeout(FORGET_S):
            await queen.stream(stream).delete_group(group)
    except NotFound:
        return
    except (QueenError, TimeoutError) as error:
        reason = error.message if isinstance(error, QueenError) else "no server answers"
        say(f"queen: the group {group} of {stream} stays: {reason}")


async def _follow(
    consumer: StreamConsumer, printer: WindowPrinter, limit: int | None, ack: bool
) -> None:
    """Print what comes, and ack it then: what could not be printed comes again."""
    wait_s, left = 0.0, limit
    async with contextlib.AsyncExitStack() as held:
        while left != 0:
            leased = await consumer.poll_window(wait_s)
            if not wait_s:
                # The group exists from here on: whatever is pushed now is seen.
                say(f"following {consumer.stream}; Ctrl-C ends it")
                wait_s = _WAIT_S
            if leased is None:
                continue
            async with contextlib.AsyncExitStack() as lease:
                await lease.enter_async_context(leased.kept_alive())
                lease.push_async_callback(_give_back, leased)
                await printer.show(leased)
                if ack:
                    # Somebody has read so slowly that the lease is over: it comes again.
                    with contextlib.suppress(LeaseLost):
                        await leased.ack()
                else:
                    await held.enter_async_context(lease.pop_all())
            left = None if left is None else left - 1


async def _give_back(leased: Window) -> None:
    if not leased.is_settled:
        with contextlib.suppress(QueenError):
            await leased.give_back()


class WindowPrinter:
    """Prints windows: a line each, and below it its messages if they were asked for."""

    def __init__(self, output: Output, *, with_messages: bool) -> None:
        self._output = output
        self._with_messages = with_messages

    async def show(self, leased: Window) -> None:
        if not self._output.is_table:
            row = _row(leased)
            if self._with_messages:
                await leased.load()
                row["messages"] = [
                    row_of_stored(message, message.raw) for message in leased.all_messages
                ]
            self._output.lines([row])
            return
        self._output.text(_line(leased))
        if self._with_messages:
            async for message in leased.stream():
                at = message.created_at.astimezone().strftime("%H:%M:%S")
                position = f"{message.queue}/{message.partition}:{message.offset}"
                self._output.text(f"  {at} {position} {payload_text(message.raw)}")


def _row(leased: Window) -> dict[str, Any]:
    names = ("id", "key", "start", "end", "count", "bytes", "lost", "attempt")
    return {
        "stream": leased.stream_name,
        "consumerGroup": leased.consumer_group,
        **{name: getattr(leased, name) for name in names},
    }


def _line(leased: Window) -> str:
    start, end = (at.astimezone().strftime("%H:%M:%S") for at in (leased.start, leased.end))
    notes = [f"{leased.count:,} messages", f"{leased.bytes:,} bytes"]
    notes += [f"{leased.lost:,} lost"] if leased.lost else []
    notes += [f"attempt {leased.attempt}"] if leased.attempt > 1 else []
    return f"{start} to {end} {leased.key}  {', '.join(notes)}"

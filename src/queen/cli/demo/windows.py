"""The second act: what users do in two queues becomes windows, one for each user and second.

Two consumers of one group share the windows. What is in them must be what was pushed: every
message in exactly one window.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from queen.client import Queen, Window

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table

_CLICKS, _PURCHASES, _STREAM = "demo.clicks", "demo.purchases", "demo.visits"
_USERS = ("anna", "bruno", "carla")
_CONSUMERS = ("reports-1", "reports-2")
_WINDOW_S = 1
_ROUNDS = 12
_PAUSE_S = 0.15
_GIVE_UP_S = 30


class _Row(NamedTuple):
    """A window, as its consumer got it."""

    start: datetime
    end: datetime
    key: str
    clicks: int
    purchases: int
    consumer: str


class _Visits:
    """What was pushed, and what came out in windows; messages by their ids."""

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.seen: Counter[str] = Counter()
        self.rows: list[_Row] = []
        self.is_pushed = False

    @property
    def is_complete(self) -> bool:
        return self.is_pushed and len(self.seen) >= len(self.pushed)

    @property
    def agrees(self) -> bool:
        return self.seen == Counter(self.pushed)

    def took(self, window: Window, consumer: str) -> None:
        queues = Counter(message.queue for message in window.all_messages)
        self.seen.update(message.transaction_id for message in window.all_messages)
        counts = queues[_CLICKS], queues[_PURCHASES]
        self.rows.append(_Row(window.start, window.end, window.key, *counts, consumer))


def show_windows(port: int, console: Console) -> bool:
    """Cut two queues into windows and show who got which; false when a message is missing."""
    console.print(
        f"Now a stream: {_CLICKS} and {_PURCHASES} in windows of {_WINDOW_S} s for each user."
    )
    visits = asyncio.run(_follow(f"http://127.0.0.1:{port}"))
    console.print(_table(visits))
    if not visits.agrees:
        console.print("[red]The windows do not hold what was pushed.")
        return False
    console.print(
        f"Each of the {len(visits.pushed)} messages of two queues is in exactly one of"
        f" {len(visits.rows)} windows."
    )
    return True


async def _follow(url: str) -> _Visits:
    visits = _Visits()
    async with Queen(url) as queen:
        stream = queen.stream(_STREAM, "demo").sources(_CLICKS, _PURCHASES).partitioned()
        await stream.tumbling_time(_WINDOW_S).grace_period(0.1).define()
        await asyncio.gather(
            _produce(queen, visits), *(_consume(queen, name, visits) for name in _CONSUMERS)
        )
        await stream.delete()
    return visits


async def _produce(queen: Queen, visits: _Visits) -> None:
    for number in range(_ROUNDS):
        for at, user in enumerate(_USERS):
            pages = [{"page": f"/{page}"} for page in range(1 + (number + at) % 3)]
            done = await queen.queue(_CLICKS).partition(user).push(pages)
            if (number + at) % 4 == 0:
                amount = {"amount": 10 * number}
                done += await queen.queue(_PURCHASES).partition(user).push(amount)
            visits.pushed += [one.transaction_id for one in done]
        await asyncio.sleep(_PAUSE_S)
    visits.is_pushed = True


async def _consume(queen: Queen, name: str, visits: _Visits) -> None:
    consumer = queen.consumer(_STREAM, "reports").named(name).wait(1).idle(_GIVE_UP_S)

    async def handle(window: Window) -> None:
        visits.took(window, name)

    processing = consumer.process(handle, signals=False)
    running = asyncio.ensure_future(processing.run())
    while not visits.is_complete and not running.done():
        await asyncio.wait((running,), timeout=0.05)
    processing.stop()
    await running


def _table(visits: _Visits) -> Table:
    from rich.table import Table

    table = Table(title="Windows of two queues, by user")
    for column in ("window", "key", "clicks", "purchases", "messages", "consumer"):
        is_number = column in ("clicks", "purchases", "messages")
        table.add_column(column, justify="right" if is_number else "left")
    rows = sorted(visits.rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(
            f"{row.start:%H:%M:%S} to {row.end:%H:%M:%S}",
            row.key,
            str(row.clicks),
            str(row.purchases),
            str(row.clicks + row.purchases),
            row.consumer,
            end_section=following is None or following.start != row.start,
        )
    clicks, purchases = sum(row.clicks for row in rows), sum(row.purchases for row in rows)
    total = str(clicks + purchases)
    table.add_row("all", "", str(clicks), str(purchases), total, f"pushed: {len(visits.pushed)}")
    return table

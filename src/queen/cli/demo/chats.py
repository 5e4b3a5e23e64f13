"""The second act: chats, translated as they happen, in windows of one chat and one second.

A translator writes into a second queue, together with its ack. A stream cuts both queues into
windows; two consumers of one group share them. Some messages are sent twice. Every message and
every translation must be in exactly one window.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from queen.cli.demo.counts import Count
from queen.client import Message, Queen, Received, Window

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import Console
    from rich.table import Table

_MESSAGES, _TRANSLATIONS, _STREAM = "demo.chat", "demo.translations", "demo.chats"
_CHATS = ("anna", "bruno", "carla")
_SPANISH = {"hello": "hola", "thank you": "gracias", "good bye": "adiós"}
_CONSUMERS = ("archive-1", "archive-2")
_WINDOW_S = 1
_ROUNDS = 15
_PAUSE_S = 0.15
_GIVE_UP_S = 30


class _Row(NamedTuple):
    """A window, as its consumer got it."""

    start: datetime
    end: datetime
    key: str
    messages: int
    translations: int
    consumer: str


class _Chats:
    """What was pushed, and what came out in windows; messages by their ids."""

    def __init__(self) -> None:
        self.pushed: list[str] = []
        self.repeats = self.duplicates = 0
        self.seen: Counter[str] = Counter()
        self.rows: list[_Row] = []
        self.is_pushed = False

    @property
    def is_complete(self) -> bool:
        return self.is_pushed and len(self.seen) >= 2 * len(self.pushed)

    def add(self, window: Window, consumer: str) -> None:
        queues = Counter(message.queue for message in window.all_messages)
        self.seen.update(message.transaction_id for message in window.all_messages)
        counts = queues[_MESSAGES], queues[_TRANSLATIONS]
        self.rows.append(_Row(window.start, window.end, window.key, *counts, consumer))


def show_chats(port: int, console: Console) -> list[Count]:
    """Cut two queues into windows and show who got which."""
    console.print(
        f"Now a stream: chats and their translations, in windows of {_WINDOW_S} s for each chat."
    )
    chats = asyncio.run(_follow(f"http://127.0.0.1:{port}"))
    console.print(_table(chats))
    once = sum(count == 1 for count in chats.seen.values())
    translated = sum(row.translations for row in chats.rows)
    return [
        Count("chat messages", len(chats.pushed), "translated", translated),
        Count("both", 2 * len(chats.pushed), f"in one of {len(chats.rows)} windows", once),
        Count("messages sent twice", chats.repeats, "known as duplicates", chats.duplicates),
    ]


async def _follow(url: str) -> _Chats:
    chats = _Chats()
    async with Queen(url) as queen:
        stream = queen.stream(_STREAM, "demo").sources(_MESSAGES, _TRANSLATIONS).partitioned()
        await stream.tumbling_time(_WINDOW_S).grace_period(0.1).define()
        await asyncio.gather(
            _produce(queen, chats),
            _translate(queen),
            *(_consume(queen, name, chats) for name in _CONSUMERS),
        )
    return chats


async def _produce(queen: Queen, chats: _Chats) -> None:
    for number in range(_ROUNDS):
        for at, chat in enumerate(_CHATS):
            said = list(_SPANISH)[(number + at) % len(_SPANISH)]
            message = Message({"text": said})
            await queen.queue(_MESSAGES).partition(chat).push(message)
            chats.pushed.append(message.transaction_id)
            if number % 5 == at:
                (again,) = await queen.queue(_MESSAGES).partition(chat).push(message)
                chats.repeats += 1
                chats.duplicates += again.status == "duplicate"
        await asyncio.sleep(_PAUSE_S)
    chats.is_pushed = True


async def _translate(queen: Queen) -> None:
    async def translate(message: Received) -> None:
        translation = {"es": _SPANISH[message.data["text"]]}
        step = queen.transaction().ack(message)
        await step.push(_TRANSLATIONS, translation, partition=message.partition).commit()

    translator = queen.queue(_MESSAGES).group("translator").limit(_ROUNDS * len(_CHATS))
    await translator.idle(_GIVE_UP_S).consume(translate, signals=False)


async def _consume(queen: Queen, name: str, chats: _Chats) -> None:
    consumer = queen.consumer(_STREAM, "archive").named(name).wait(1).idle(_GIVE_UP_S)

    async def handle(window: Window) -> None:
        chats.add(window, name)

    processing = consumer.process(handle, signals=False)
    running = asyncio.ensure_future(processing.run())
    while not chats.is_complete and not running.done():
        await asyncio.wait((running,), timeout=0.05)
    processing.stop()
    await running


def _table(chats: _Chats) -> Table:
    from rich.table import Table

    table = Table(title="Windows of two queues, by chat")
    for column in ("window", "chat", "messages", "translations", "consumer"):
        is_number = column in ("messages", "translations")
        table.add_column(column, justify="right" if is_number else "left")
    rows = sorted(chats.rows)
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        table.add_row(
            f"{row.start:%H:%M:%S} to {row.end:%H:%M:%S}",
            row.key,
            str(row.messages),
            str(row.translations),
            row.consumer,
            end_section=following is None or following.start != row.start,
        )
    return table

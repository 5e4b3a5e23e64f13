"""Write docs/reference/client.md from the client itself.

Signatures and docstrings are taken from the classes, so the page can be wrong only where they
are; a test fails when it is not up to date, or when something public does not say what it does.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import queen.errors
from queen.client.admin import Admin
from queen.client.queen import Queen
from queen.client.queues.consumer import Consumer
from queen.client.queues.dead_letters import DeadLetter, DeadLetterPage, DeadLetterQuery
from queen.client.queues.messages import Message, Pushed, Received
from queen.client.queues.queue import Queue
from queen.client.queues.transaction import Transaction, TransactionQueue
from queen.client.spooling.refused import RefusedMessage
from queen.client.spooling.spool import ClientSpool, SpoolState
from queen.client.streams.builder import Stream
from queen.client.streams.consumer import StreamConsumer
from queen.client.streams.grouping import Joined
from queen.client.streams.messages import Range, WindowMessage
from queen.client.streams.processing import Processing
from queen.client.streams.sync import SyncStream, SyncStreamConsumer, SyncWindow
from queen.client.streams.window import Window
from queen.client.sync import (
    SyncAdmin,
    SyncDeadLetters,
    SyncQueen,
    SyncQueue,
    SyncReceived,
    SyncSpool,
    SyncTransaction,
)

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "client.md"

CLASSES: list[type] = [
    Queen,
    Queue,
    Consumer,
    Message,
    Pushed,
    Received,
    Transaction,
    TransactionQueue,
    DeadLetterQuery,
    DeadLetterPage,
    DeadLetter,
    Stream,
    StreamConsumer,
    Processing,
    Window,
    WindowMessage,
    Range,
    Joined,
    ClientSpool,
    SpoolState,
    RefusedMessage,
    Admin,
    SyncQueen,
    SyncQueue,
    SyncReceived,
    SyncTransaction,
    SyncDeadLetters,
    SyncStream,
    SyncStreamConsumer,
    SyncWindow,
    SyncSpool,
    SyncAdmin,
]

# What other modules of the client use, and its users have no use for.
_INNER = {
    Consumer: {
        "finish",
        "is_at_limit",
        "keep_lease",
        "leave",
        "next_batch",
        "note_pace",
        "settle",
        "stop_on_signals",
    },
    Processing: {"finish", "keep_lease", "load", "next_window", "settle", "stop_on_signals"},
    ClientSpool: {
        "is_for_spool",
        "keep_frames",
        "keep_items",
        "keys_behind",
        "leave_to_parent",
        "note_failure",
        "start",
    },
    Queen: {"post", "push", "push_frames", "renew_within", "settle", "try_frames"},
    SyncQueen: {"call_soon", "is_own_thread", "stop_on_signals", "wait_for"},
}
_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
_MADE_BY_USERS = {Queen, Message, SyncQueen}

_HEAD = """# Python client

Made from the code by `make reference`; do not edit. New here? Begin with
[your first queue](../tutorial/first-queue.md).

`from queen import Message, Pushed, Queen, QueenError, Received, Window`, and `SyncQueen`,
`SyncReceived`, `SyncWindow`; the errors are in `queen.errors`. What is marked *async* is awaited.
The classes whose names begin with `Sync` are the same client for programs without asyncio.
Queues, streams, their consumers and windows answer to the names of the JavaScript client too:
`stream.tumblingTime(60)` is `stream.tumbling_time(60)`. `Seconds` is a number or a `timedelta`.
"""


_ABOUT_ERRORS = """All are `QueenError` and have `code`, `retryable`, `message` and `details`, which
is what the server said beside the message. The client sends again by itself what is worth it, so
an error that is retryable has lasted for `retry_s`.
"""


def render() -> str:
    """Return the page."""
    parts = [_HEAD]
    for kind in CLASSES:
        parts.append("\n".join(of_class(kind, is_made_by_users=kind in _MADE_BY_USERS)))
    parts.append("\n".join(_of_errors()))
    return "\n".join(parts).rstrip() + "\n"


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield what is public of a class, inherited or its own, in the order of the source."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("queen."):
            found.update(
                (name, value)
                for name, value in vars(base).items()
                if not name.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, property))
            )
    hidden = _INNER.get(kind, set())
    yield from ((name, value) for name, value in found.items() if name not in hidden)


def of_class(kind: type, *, is_made_by_users: bool = False) -> Iterator[str]:
    """Yield the lines of a class: how it is made, what it says of itself, and its members."""
    yield f"## {kind.__name__}"
    yield ""
    if is_made_by_users:
        yield f"```\n{kind.__name__}{_signature(kind).removesuffix(f' -> {kind.__name__}')}\n```"
        yield ""
    yield _text(kind)
    yield ""
    fields = [name for name in getattr(kind, "__struct_fields__", ()) if not name.startswith("_")]
    if fields:
        yield f"Fields: {', '.join(f'`{name}`' for name in fields)}."
        yield ""
    for name, member in members(kind):
        yield from _of_member(name, member)


def _of_member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        yield f"### `{name}`"
    else:
        awaited = " *async*" if inspect.iscoroutinefunction(member) else ""
        yield f"### `{name}{_signature(member)}`{awaited}"
    yield ""
    yield _text(member)
    yield ""


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    shown: list[str] = []
    named_only = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not named_only:
            shown.append("*")
            named_only = True
        stars = _STARS.get(one.kind, "")
        named_only = named_only or one.kind is one.VAR_POSITIONAL
        default = "" if one.default is one.empty else f" = {one.default!r}"
        shown.append(f"{stars}{one.name}: {one.annotation}{default}")
    returned = signature.return_annotation
    arrow = "" if returned in (signature.empty, "None") else f" -> {returned}"
    return f"({', '.join(shown)}){arrow}"


def _text(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _of_errors() -> Iterator[str]:
    yield "## Errors"
    yield ""
    yield _ABOUT_ERRORS
    yield "| error | code | retryable | what it means |"
    yield "| --- | --- | --- | --- |"
    yield from _error_rows(queen.errors.QueenError, 0)


def _error_rows(kind: type[queen.errors.QueenError], depth: int) -> Iterator[str]:
    indent = "&nbsp;&nbsp;" * depth
    again = "yes" if kind.retryable else ""
    text = " ".join(_text(kind).split())
    yield f"| {indent}`{kind.__name__}` | `{kind.code}` | {again} | {text} |"
    for child in kind.__subclasses__():
        # Those of the server alone, and those of other programs, are not the client's.
        if child.__module__ != "queen.errors" or child is queen.errors.StartupError:
            continue
        yield from _error_rows(child, depth + 1)


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()

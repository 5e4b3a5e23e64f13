"""Completion of names in the shell, from the server, when it answers at once.

Whatever goes wrong is not said: a line of an error in the middle of a prompt helps nobody.

Names come from whoever may push, and shells put what is offered into the command line as it is:
bash does so unquoted, zsh evaluates it. So a name is offered only when it means itself in every
shell; any other is typed, in quotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

# Nobody who presses Tab waits for a server that is not there.
_PATIENCE_S = 0.5
_MOST = 1000
# Letters, digits and what no shell gives a meaning to, nor breaks words at as bash does at : = @;
# and nothing that looks like an option.
_SAFE = re.compile(r"[\w.][\w.,+%/-]*")


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the queues that begin so."""
    return _ask(context, incomplete, "resources/queues", lambda answer: _names(answer["queues"]))


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the streams that begin so."""
    return _ask(context, incomplete, "resources/streams", lambda answer: _names(answer["streams"]))


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin so; of the queue, where one is named before."""
    queue = context.params.get("queue")

    def names(answer: Any) -> Iterable[str]:
        return _names(row for row in answer if queue in (None, row["queueName"]))

    return _ask(context, incomplete, "consumer-groups", names)


def stream_group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups that begin so of the stream that is named before."""
    stream = context.params.get("name") or context.params.get("stream")
    if stream is None:
        return []
    path = f"resources/streams/{quote(stream, safe='')}/consumers"
    return _ask(
        context,
        incomplete,
        path,
        lambda answer: (row["consumerGroup"] for row in answer["consumers"]),
    )


def pipeline_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the pipelines that begin so."""
    return _ask(context, incomplete, "pipelines", lambda answer: _names(answer["pipelines"]))


def option_names(incomplete: str) -> list[str]:
    """Return the options of queues that begin so, ready for their value."""
    return [f"{name}=" for name in unset_names(incomplete)]


def unset_names(incomplete: str) -> list[str]:
    """Return the options of queues that begin so."""
    from queen.core.options import OPTION_NAMES

    return [name for name in OPTION_NAMES if name.startswith(incomplete)]


def context_names(incomplete: str) -> list[str]:
    """Return the contexts that begin so."""
    from queen.cli.contexts import read_contexts

    return _quietly(lambda: sorted(_offered(read_contexts().contexts, incomplete)))


def _names(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    return (str(row["name"]) for row in rows)


def _offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin so and are safe in a command line, once each."""
    return [
        name
        for name in dict.fromkeys(names)
        if name.startswith(incomplete) and not name.startswith("__") and _SAFE.fullmatch(name)
    ]


def _ask(
    context: typer.Context,
    incomplete: str,
    path: str,
    names_in: Callable[[Any], Iterable[str]],
) -> list[str]:
    """Return the names in what a server lists."""

    def names() -> list[str]:
        answer = asyncio.run(asyncio.wait_for(_request(context, path), _PATIENCE_S))
        return _offered(names_in(answer), incomplete)

    return _quietly(names)


async def _request(context: typer.Context, path: str) -> Any:
    from queen.cli.contexts import Asked, note_asked, target_of
    from queen.client import Queen

    given = context.params
    note_asked(Asked(given.get("context_name"), given.get("cacert")))
    target = target_of(given.get("url"), given.get("token") or os.environ.get("QUEEN_TOKEN"))
    queen = Queen(target.urls, token=target.token, retry_s=0, ssl_context=target.tls())
    async with queen:
        return await queen.request("GET", f"/api/v1/{path}?limit={_MOST}")


def _quietly(names: Callable[[], list[str]]) -> list[str]:
    """Return names, none when anything goes wrong; nothing reaches the prompt, not even a log."""
    logging.disable(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
        try:
            return names()
        # Whatever it was: who presses Tab is told nothing.
        except (Exception, SystemExit):
            return []

"""Where a command that follows a queue or a stream starts, and under which group it reads."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Annotated, NamedTuple, TypeVar

import typer

from queen.cli.times import parse_time
from queen.client.queues.consuming import Consuming

# How long the end of a command takes at most to tidy up behind it.
FORGET_S = 1.0

C = TypeVar("C", bound=Consuming)

From = Annotated[
    str | None, typer.Option("--from", help="Where to start: beginning, now (default), or a time.")
]
Ack = Annotated[bool, typer.Option("--ack/--no-ack", help="Whether they are done once printed.")]


class Start(NamedTuple):
    """Where to start; `mode` and `since` are None for a group of the user's, which goes on."""

    group: str
    # Made for this command, and deleted when it ends.
    is_own_group: bool
    mode: str | None
    since: datetime | None

    def apply_to(self, consumer: C) -> C:
        """Return the consumer, told where its group starts."""
        if self.since is not None:
            return consumer.subscription_from(self.since)
        return consumer if self.mode is None else consumer.subscription_mode(self.mode)


def parse_start(group: str | None, start: str | None, how_to_seek: str) -> Start:
    """Return what --group and --from mean together."""
    if group is not None and start is not None:
        raise typer.BadParameter(
            f"a group has its own place: see `{how_to_seek}`", param_hint="--from"
        )
    if group:
        return Start(group, is_own_group=False, mode=None, since=None)
    own_group = f"tail-{uuid.uuid4().hex[:12]}"
    if start in (None, "beginning", "now"):
        mode = "all" if start == "beginning" else "new"
        return Start(own_group, is_own_group=True, mode=mode, since=None)
    since = parse_time("--from", start or "")
    return Start(own_group, is_own_group=True, mode=None, since=since)

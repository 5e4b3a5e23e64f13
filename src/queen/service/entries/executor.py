"""Commands on behalf of one caller."""

from __future__ import annotations

from collections.abc import Sequence

from queen.service.entries.desk import EntryDesk
from queen.service.scope import Viewer
from queen.streambroker.engine.keyspace import Arguments
from queen.streambroker.replies import Reply

_WAITING = frozenset({b"XREAD", b"XREADGROUP"})
# Options stand before the streams; no command has more of them.
_OPTIONS = 16


class EntryExecutor:
    """Runs commands for a viewer; see `queen.streambroker.replies.Executor`."""

    def __init__(self, desk: EntryDesk, viewer: Viewer) -> None:
        self._desk = desk
        self._viewer = viewer

    async def execute(
        self, commands: Sequence[Arguments], *, is_atomic: bool = False
    ) -> list[Reply]:
        if is_atomic:
            return await self._desk.run(self._viewer, commands, is_atomic=True)
        replies: list[Reply] = []
        start = 0
        for number, command in enumerate(commands, 1):
            if number == len(commands) or is_blocking(command):
                run = commands[start:number]
                replies += await self._desk.run(self._viewer, run, is_atomic=False)
                start = number
        return replies


def is_blocking(command: Arguments) -> bool:
    """Whether a command may wait: whatever follows on its connection waits behind it."""
    # Most commands cannot, and tell it by their second letter.
    return (
        command[0][1:2] in {b"R", b"r"}
        and command[0].upper() in _WAITING
        and any(argument.upper() == b"BLOCK" for argument in command[1:_OPTIONS])
    )

"""Which pushes go to the home, and which stay."""

from __future__ import annotations

from typing import Any

import pytest

from queen.service.events import Events
from queen.service.home.home import Home
from queen.service.home.host import Verbs
from queen.service.log.append import Append


class Entrance:
    """Notes what is pushed here; some partitions have records in its spool."""

    def __init__(self, *behind: str) -> None:
        self.pushed: list[str] = []
        self._behind = behind

    def is_behind(self, appends: list[Append]) -> bool:
        return any(append.partition in self._behind for append in appends)

    async def push(self, appends: list[Append], buffering: object) -> None:
        self.pushed += [append.partition for append in appends]


class Away(Exception):
    pass


class Front:
    async def call(self, kind: int, body: bytes) -> bytes:
        raise Away


async def test_what_was_spooled_here_comes_before_what_goes_to_the_home() -> None:
    entrance, nobody = Entrance("p1"), None
    verbs: Any = Verbs(nobody, entrance, nobody, nobody, nobody, nobody)  # type: ignore[arg-type]
    home = Home(None, verbs, Events())
    home._front = Front()  # type: ignore[assignment]
    first, second = (Append("q", name, (b"a",), (b"1",), 1) for name in ("p1", "p2"))
    await home.push([first])
    assert entrance.pushed == ["p1"]
    with pytest.raises(Away):
        await home.push([second])
    home._front = None
    await home.push([second])
    assert entrance.pushed == ["p1", "p2"]

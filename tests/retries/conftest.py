"""Two servers on one database whose clock can be turned forward."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import Answer, Api
from tests.conftest import ServerProcess


@pytest.fixture(scope="module")
def clocked_servers(dsn: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    first = ServerProcess("--database-url", dsn, "--test-clock")
    second = ServerProcess("--database-url", dsn, "--test-clock")
    yield first, second
    assert first.stop() == second.stop() == 0


class Servers:
    """Asks two servers by turns."""

    def __init__(self, *apis: Api) -> None:
        self.apis = apis
        self._turns = itertools.cycle(apis)

    @property
    def next(self) -> Api:
        return next(self._turns)

    def advance(self, seconds: float, queue: str) -> None:
        body = {"seconds": seconds, "queue": queue}
        assert self.next.call("POST", "/api/v1/test/advance", body).status == 200

    def pop_none(self, queue: str, **query: Any) -> None:
        """Nothing can be popped, whichever server is asked."""
        for api in self.apis:
            assert api.messages(queue, **query) == []

    def pop(self, queue: str, **query: Any) -> list[Any]:
        return self.next.messages(queue, wait="true", timeout=20_000, **query)

    def fail(self, message: dict[str, Any], **more: Any) -> Answer:
        return self.next.ack(message, "failed", **more)


@pytest.fixture
def servers(clocked_servers: tuple[ServerProcess, ServerProcess]) -> Iterator[Servers]:
    apis = [Api(running.url) for running in clocked_servers]
    yield Servers(*apis)
    for api in apis:
        api.close()

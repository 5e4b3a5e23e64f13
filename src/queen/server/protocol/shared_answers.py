"""Answers that many onlookers share.

Ten open dashboards ask the same questions again and again. Who asks while others wait for the same
answer gets theirs, if it has not been begun: so it is never older than the asking. When onlookers
take more than a small part of the server's time, the next answer is begun a moment later, and is
the answer of all who ask meanwhile. Who asks alone never waits.

An answer belongs to what was asked and to what the caller may see, so nobody is shown what was
made for somebody who may see more.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Hashable
from functools import partial

from queen.server.protocol.http import ClientConnection, Handler, Request, Response
from queen.service.singleflight import Rounds

# How much of its time the server gives to onlookers before it lets them wait for each other.
_SHARE = 0.05
# So much is free, after a quiet time.
_FREE_S = 0.2
_LONGEST_WAIT_S = 1.0
# Questions of which is known who asked them last.
_MAX_ASKERS = 1000


class SharedAnswers:
    def __init__(self) -> None:
        self._rounds = Rounds[Response | None]()
        # What answers took, less what time has passed since.
        self._spent_s = 0.0
        self._spent_at = time.monotonic()
        # By what was asked: which connection asked last.
        self._askers: OrderedDict[Hashable, int] = OrderedDict()

    def sharing(self, handler: Handler) -> Handler:
        """Return a handler that shares the answers of one, whose answers depend on nothing but
        the URL and what the caller may see."""

        async def share(request: Request) -> Response | None:
            caller = request.caller
            key = (request.path, request.query, caller.role, caller.namespaces)
            return await self._rounds.ask(
                key,
                partial(self._answer, handler, request),
                partial(asyncio.sleep, self._wait_s(key, request.connection)),
            )

        return share

    async def _answer(self, handler: Handler, request: Request) -> Response | None:
        began_at = time.monotonic()
        try:
            return await handler(request)
        finally:
            self._note(time.monotonic() - began_at)

    def _wait_s(self, key: Hashable, connection: ClientConnection) -> float:
        """Return how long the next answer can wait for others who want it too."""
        is_alone = self._askers.get(key) in (None, id(connection))
        self._askers[key] = id(connection)
        self._askers.move_to_end(key)
        if len(self._askers) > _MAX_ASKERS:
            self._askers.popitem(last=False)
        self._note(0.0)
        wait_s = (self._spent_s - _FREE_S) / _SHARE
        return 0.0 if is_alone else min(max(wait_s, 0.0), _LONGEST_WAIT_S)

    def _note(self, took_s: float) -> None:
        now = time.monotonic()
        self._spent_s = max(self._spent_s - _SHARE * (now - self._spent_at), 0.0) + took_s
        self._spent_at = now

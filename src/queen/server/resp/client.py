"""A client of the RESP port: who it is, and what it has said about itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from queen.errors import Forbidden, OutcomeUnknown, QueenError, Unauthenticated
from queen.server.auth.access import TRUSTED, Caller
from queen.server.resp.command_reader import Command
from queen.server.resp.specs import Spec
from queen.streambroker.replies import Executor, Failure, Reply

if TYPE_CHECKING:
    from queen.server.resp.front import Front

_log = logging.getLogger(__name__)

DEFAULT_USER = "default"
# Whoever has guessed wrong so often is hung up on.
_MOST_GUESSES = 5
_COMMAND_BYTES = 128
_ARGUMENT_BYTES = 48


class ReplyMode(Enum):
    ON = "on"
    OFF = "off"
    SKIP_NEXT = "skip next"


class Transaction:
    """Commands between MULTI and EXEC."""

    __slots__ = ("commands", "held_bytes", "is_bad")

    def __init__(self) -> None:
        self.commands: list[tuple[Spec, Command]] = []
        self.held_bytes = 0
        # A command was refused: none will be run.
        self.is_bad = False

    def add(self, spec: Spec, command: Command) -> None:
        self.commands.append((spec, command))
        size = sum(map(len, command)) + _ARGUMENT_BYTES * len(command)
        self.held_bytes += _COMMAND_BYTES + size


class Client:
    def __init__(
        self, front: Front, number: int, host: str, address: str, local_address: str
    ) -> None:
        self.front = front
        self.id = number
        self.host = host
        self.address = address
        self.local_address = local_address
        self.began_at = self.active_at = time.monotonic()
        self.last_command = "NULL"
        self.library: dict[str, bytes] = {"lib-name": b"", "lib-ver": b""}
        # None: it has to show a token first.
        self.caller: Caller | None = None
        self.executor: Executor | None = None
        self._token: str | None = None
        self._wrong_guesses = 0
        # The wait of a blocking command, and what is answered when it is ended from outside.
        self.wait: asyncio.Future[list[Reply]] | None = None
        self.end_of_wait: Reply = None
        # It is hung up on as soon as this command is answered.
        self.is_leaving = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Be as it was when it connected."""
        self.is_resp3 = False
        self.name = b""
        self.reply_mode = ReplyMode.ON
        self.transaction: Transaction | None = None
        self._token = None
        if self.front.authenticate is None:
            self.become(TRUSTED)
        else:
            self.caller = self.executor = None

    # ---- who it is ----

    def become(self, caller: Caller) -> None:
        if caller != self.caller:
            self.caller = caller
            self.executor = self.front.executor_for(caller)

    @property
    def user(self) -> str:
        return (self.caller and self.caller.subject) or DEFAULT_USER

    async def authenticate(self, user: bytes, token: bytes) -> None:
        """Find out whose token it is; raises `Failure` when it is not good."""
        if self.front.authenticate is None:
            # Nobody has to show anything, and only one user is known.
            if user.decode("utf-8", "replace") != DEFAULT_USER:
                raise _WRONG_PASS
            return
        try:
            text = token.decode("ascii")
            self.become(await self.front.authenticate(text))
        except (Unauthenticated, UnicodeDecodeError):
            self._wrong_guesses += 1
            self.is_leaving |= self._wrong_guesses >= _MOST_GUESSES
            raise _WRONG_PASS from None
        except QueenError as error:
            raise failure_of(error) from None
        self._token = text

    async def recheck(self) -> bool:
        """Return whether the token is still good: tokens end, and are revoked."""
        if self.front.authenticate is None or self._token is None:
            return True
        token = self._token
        try:
            caller = await self.front.authenticate(token)
        except Unauthenticated:
            return self._token != token
        except QueenError:
            # Nobody can tell; what is asked of the database now fails by itself.
            return True
        if self._token == token:
            self.become(caller)
        return True

    def may(self, spec: Spec) -> bool:
        caller = self.caller
        assert caller is not None
        return caller.role >= spec.role and not (spec.is_global and caller.namespaces is not None)

    # ---- what it asks for ----

    async def execute(self, commands: Sequence[Command], *, is_atomic: bool = False) -> list[Reply]:
        """Run commands; raises `Failure` when none was run, or nobody knows."""
        assert self.executor is not None
        assert self.caller is not None
        rates = self.front.rates
        try:
            if rates is not None:
                rates.take(self.caller.subject or self.host, len(commands))
            replies = await self.executor.execute(commands, is_atomic=is_atomic)
        except QueenError as error:
            raise failure_of(error) from None
        except Exception:
            _log.exception("commands could not be run")
            raise Failure("ERR internal error") from None
        if len(replies) != len(commands):
            _log.error("%d commands have %d replies", len(commands), len(replies))
            raise Failure("ERR internal error")
        return replies

    # ---- waiting ----

    @property
    def is_waiting(self) -> bool:
        return self.wait is not None

    def end_wait(self, reply: Reply) -> bool:
        """End the wait of a blocking command with a reply; false when it does not wait."""
        if self.wait is None or self.wait.done():
            return False
        self.end_of_wait = reply
        self.wait.cancel()
        return True


_WRONG_PASS = Failure("WRONGPASS invalid username-password pair or user is disabled.")


def failure_of(error: QueenError) -> Failure:
    """Return what a client is told when nothing was run, or nobody knows."""
    if isinstance(error, OutcomeUnknown):
        # Not a word that says to try again: what was sent may have been done.
        return Failure(f"ERR outcome unknown: {error}")
    if error.retryable:
        return Failure(f"TRYAGAIN {error}")
    return Failure(f"NOPERM {error}" if isinstance(error, Forbidden) else f"ERR {error}")

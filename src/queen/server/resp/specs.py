"""What is known of commands before they are run: their arguments, their effect, who may send them.

Commands on streams and keys are run by an `Executor`. What they need is told here, because a
command in a transaction is refused when it is queued, not when it is run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from queen.server.auth.access import Role
from queen.server.resp.command_reader import Command
from queen.server.resp.encoding import Answer
from queen.streambroker.replies import Failure

if TYPE_CHECKING:
    from queen.server.resp.client import Client

_SHOWN_BYTES = 128


class Spec(NamedTuple):
    name: str
    # How many words a command has, its name among them; negative: that many or more.
    arity: int
    role: Role
    flags: tuple[str, ...] = ()
    # Which words are keys: the first, the last, and the step between them.
    keys: tuple[int, int, int] = (0, 0, 0)
    # Answered by the front: at once, or after a while. Neither: an executor runs it.
    answer: Callable[[Client, Command], Answer] | None = None
    answer_later: Callable[[Client, Command], Awaitable[Answer]] | None = None
    subcommands: dict[bytes, Spec] = {}  # noqa: RUF012 (nobody changes it)
    # Replies may be long: few of these are run together.
    is_heavy: bool = False
    # Of a caller that is limited to namespaces it would touch what others have.
    is_global: bool = False

    @property
    def is_handed_on(self) -> bool:
        return self.answer is None and self.answer_later is None

    def takes(self, count: int) -> bool:
        return count == self.arity if self.arity >= 0 else count >= -self.arity


# ---- what commands are refused with ----


def unknown_command(command: Command) -> Failure:
    """Return the words of Redis, by which clients know."""
    shown = ""
    for argument in command[1:]:
        if len(shown) >= _SHOWN_BYTES:
            break
        shown += f"'{_text(argument[: _SHOWN_BYTES - len(shown)])}' "
    name = _text(command[0][:_SHOWN_BYTES])
    return Failure(f"ERR unknown command '{name}', with args beginning with: {shown}")


def unknown_subcommand(command: Command) -> Failure:
    name = _text(command[1][:_SHOWN_BYTES])
    return Failure(
        f"ERR unknown subcommand '{name}'. Try {_text(command[0][:_SHOWN_BYTES]).upper()} HELP."
    )


def wrong_count(spec: Spec) -> Failure:
    return Failure(f"ERR wrong number of arguments for '{spec.name}' command")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


# ---- commands that an executor runs ----

_READ = ("readonly",)
_READ_FAST = ("readonly", "fast")
_WRITE = ("write",)
_WRITE_FAST = ("write", "fast")
_KEY = (1, 1, 1)
_KEYS = (1, -1, 1)


def _reads(name: str, arity: int, *, fast: bool = False, heavy: bool = False) -> Spec:
    flags = _READ_FAST if fast else _READ
    return Spec(name, arity, Role.READ, flags, _KEY, is_heavy=heavy)


def _writes(name: str, arity: int, *, fast: bool = False, heavy: bool = False) -> Spec:
    flags = _WRITE_FAST if fast else _WRITE
    return Spec(name, arity, Role.WRITE, flags, _KEY, is_heavy=heavy)


def _container(name: str, *subcommands: Spec) -> Spec:
    named = {spec.name.partition("|")[2].upper().encode(): spec for spec in subcommands}
    return Spec(name, -2, Role.READ, subcommands=named)


_XGROUP = _container(
    "xgroup",
    _writes("xgroup|create", -5)._replace(keys=(2, 2, 1)),
    _writes("xgroup|createconsumer", 5)._replace(keys=(2, 2, 1)),
    _writes("xgroup|delconsumer", -5)._replace(keys=(2, 2, 1)),
    _writes("xgroup|destroy", 4)._replace(keys=(2, 2, 1)),
    _writes("xgroup|setid", -5)._replace(keys=(2, 2, 1)),
    _writes("xgroup|setlimit", 5)._replace(keys=(2, 2, 1)),
    Spec("xgroup|help", 2, Role.READ),
)
_XINFO = _container(
    "xinfo",
    _reads("xinfo|consumers", 4, heavy=True)._replace(keys=(2, 2, 1)),
    _reads("xinfo|groups", 3, heavy=True)._replace(keys=(2, 2, 1)),
    _reads("xinfo|stream", -3, heavy=True)._replace(keys=(2, 2, 1)),
    Spec("xinfo|help", 2, Role.READ),
)
_HANDED_ON = (
    _writes("xadd", -5, fast=True),
    _writes("xtrim", -4),
    _reads("xlen", 2, fast=True),
    _reads("xrange", -4, heavy=True),
    _reads("xrevrange", -4, heavy=True),
    Spec("xread", -4, Role.READ, ("readonly", "blocking", "movablekeys"), is_heavy=True),
    Spec("xreadgroup", -7, Role.WRITE, ("write", "blocking", "movablekeys"), is_heavy=True),
    _XGROUP,
    _writes("xack", -4, fast=True),
    _writes("xackdel", -6, fast=True),
    _writes("xnack", -7, fast=True),
    _reads("xpending", -3, heavy=True),
    _writes("xclaim", -6, fast=True, heavy=True),
    _writes("xautoclaim", -6, fast=True, heavy=True),
    _XINFO,
    _writes("xdel", -3, fast=True),
    _writes("xdelex", -5, fast=True),
    _writes("xsetid", -3, fast=True),
    _writes("xcfgset", -2, fast=True),
    _writes("xredrive", -2),
    _writes("del", -2)._replace(keys=_KEYS),
    _writes("unlink", -2, fast=True)._replace(keys=_KEYS),
    _reads("exists", -2, fast=True)._replace(keys=_KEYS),
    _reads("touch", -2, fast=True)._replace(keys=_KEYS),
    _reads("type", 2, fast=True),
    _reads("keys", 2, heavy=True)._replace(keys=(0, 0, 0)),
    _reads("scan", -2, heavy=True)._replace(keys=(0, 0, 0)),
    _reads("dbsize", 1, fast=True)._replace(keys=(0, 0, 0)),
    _reads("randomkey", 1)._replace(keys=(0, 0, 0)),
    _writes("expire", -3, fast=True),
    _writes("pexpire", -3, fast=True),
    _writes("expireat", -3, fast=True),
    _writes("pexpireat", -3, fast=True),
    _reads("ttl", 2, fast=True),
    _reads("pttl", 2, fast=True),
    _reads("expiretime", 2, fast=True),
    _reads("pexpiretime", 2, fast=True),
    _writes("persist", 2, fast=True),
    Spec("flushdb", -1, Role.ADMIN, _WRITE, is_global=True),
    Spec("flushall", -1, Role.ADMIN, _WRITE, is_global=True),
)

HANDED_ON = {spec.name.upper().encode(): spec for spec in _HANDED_ON}

# Options of the reading commands and how many words each takes, itself among them.
_OPTIONS = {
    b"GROUP": 3,
    b"COUNT": 2,
    b"NOACK": 1,
    b"CLAIM": 2,
    b"MAXCOUNT": 2,
    b"MAXSIZE": 2,
}


def may_wait(command: Command) -> bool:
    """Return whether a reading command asks to wait when there is nothing to read."""
    at = 1
    while at < len(command):
        option = command[at].upper()
        if option == b"BLOCK":
            return True
        words = _OPTIONS.get(option)
        if words is None:
            return False
        at += words
    return False

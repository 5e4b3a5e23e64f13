"""Who may come in, and what they may do then."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from queen.errors import Unauthenticated, Unavailable
from queen.server.auth.access import Caller, Role
from queen.server.resp.front import Front, RespLimits
from tests.resp.conftest import Opener, serving
from tests.resp.executors import Recording
from tests.resp.wire import Wire, packed
from tests.waiting import until_met

_NOAUTH = b"-NOAUTH Authentication required.\r\n"
_WRONGPASS = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
_OK = b"+OK\r\n"


class Doorman:
    """Knows some tokens, as an authenticator does."""

    def __init__(self) -> None:
        self.callers = {
            "reader": Caller("ann", Role.READ),
            "writer": Caller("bob", Role.WRITE),
            "admin": Caller("eve", Role.ADMIN),
            "limited": Caller("leo", Role.ADMIN, frozenset({"shop"})),
        }
        self.is_away = False

    async def authenticate(self, token: str) -> Caller:
        if self.is_away:
            raise Unavailable
        if token not in self.callers:
            raise Unauthenticated
        return self.callers[token]


@pytest.fixture
async def doorman() -> Doorman:
    return Doorman()


@pytest.fixture
async def executors() -> dict[Caller, Recording]:
    """Those that callers were given."""
    return {}


@pytest.fixture
async def front(doorman: Doorman, executors: dict[Caller, Recording]) -> AsyncIterator[Front]:
    def executor_for(caller: Caller) -> Recording:
        return executors.setdefault(caller, Recording())

    front = Front(executor_for, doorman.authenticate)
    async with serving(front):
        yield front


async def _as(open_wire: Opener, front: Front, token: str) -> Wire:
    wire = await open_wire(front.port)
    assert await wire.ask("AUTH", token) == _OK
    return wire


async def test_a_stranger_gets_nothing(
    front: Front, open_wire: Opener, executors: dict[Caller, Recording]
) -> None:
    wire = await open_wire(front.port)
    for words in (("PING",), ("XLEN", "s"), ("MULTI",), ("INFO",), ("CLIENT", "ID"), ("COMMAND",)):
        assert await wire.ask(*words) == _NOAUTH
    assert (await wire.ask("HELLO", "3")).startswith(b"-NOAUTH HELLO must be called")
    wire.send(b"*11\r\n")
    assert await wire.rest() == b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    assert not executors


async def test_a_token_is_shown_in_any_of_three_ways(front: Front, open_wire: Opener) -> None:
    for words in (
        ("AUTH", "reader"),
        ("AUTH", "anybody", "reader"),
        ("HELLO", "2", "AUTH", "default", "reader", "SETNAME", "me"),
    ):
        wire = await open_wire(front.port)
        assert not (await wire.ask(*words)).startswith(b"-")
        assert await wire.ask("PING") == b"+PONG\r\n"
    assert await wire.ask("CLIENT", "GETNAME") == b"$2\r\nme\r\n"


async def test_what_follows_a_token_may_be_sent_with_it(front: Front, open_wire: Opener) -> None:
    wire = await open_wire(front.port)
    many = ["f", "v"] * 20
    wire.send(packed("AUTH", "writer") + packed("XADD", "s", "*", *many))
    assert await wire.reply() == _OK
    assert b"XADD" in await wire.reply()


async def test_a_wrong_token_is_refused_and_guessing_ends_soon(
    front: Front, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    for words in (("AUTH", "x"), ("AUTH", "reader", "x"), ("HELLO", "3", "AUTH", "default", "x")):
        assert await wire.ask(*words) == _WRONGPASS
        assert await wire.ask("PING") == _NOAUTH
    wire.send(packed("AUTH", b"\xff") + packed("AUTH", "y") + packed("AUTH", "reader"))
    assert await wire.rest() == 2 * _WRONGPASS


async def test_a_wrong_token_takes_nothing_away(front: Front, open_wire: Opener) -> None:
    wire = await _as(open_wire, front, "reader")
    assert await wire.ask("AUTH", "x") == _WRONGPASS
    assert await wire.ask("PING") == b"+PONG\r\n"


async def test_when_nobody_can_tell_the_client_may_try_again(
    front: Front, doorman: Doorman, open_wire: Opener
) -> None:
    doorman.is_away = True
    wire = await open_wire(front.port)
    assert (await wire.ask("AUTH", "reader")).startswith(b"-TRYAGAIN ")
    doorman.is_away = False
    assert await wire.ask("AUTH", "reader") == _OK


async def test_roles_decide_what_may_be_done(front: Front, open_wire: Opener) -> None:
    reads = (("XLEN", "s"), ("XINFO", "STREAM", "s"), ("SCAN", "0"), ("CONFIG", "GET", "save"))
    writes = (
        ("XADD", "s", "*", "f", "v"),
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"),
        ("XGROUP", "CREATE", "s", "g", "0"),
        ("DEL", "s"),
    )
    rules = (
        ("FLUSHALL",),
        ("CLIENT", "LIST"),
        ("CLIENT", "KILL", "ID", "999"),
        ("CONFIG", "RESETSTAT"),
    )
    for token, level in (("reader", 1), ("writer", 2), ("admin", 3)):
        wire = await _as(open_wire, front, token)
        for needed, commands in ((1, reads), (2, writes), (3, rules)):
            for words in commands:
                answer = await wire.ask(*words)
                assert answer.startswith(b"-NOPERM") == (level < needed), (token, words)
    reader = await _as(open_wire, front, "reader")
    assert await reader.ask("XGROUP", "CREATE", "s", "g", "0") == (
        b"-NOPERM User ann has no permissions to run the 'xgroup|create' command\r\n"
    )
    await reader.ask("MULTI")
    assert (await reader.ask("DEL", "s")).startswith(b"-NOPERM")
    assert (await reader.ask("EXEC")).startswith(b"-EXECABORT")


async def test_what_administrators_do_is_in_the_audit_trail(
    front: Front, open_wire: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "queen.audit")
    for token in ("writer", "admin"):
        wire = await _as(open_wire, front, token)
        for words in (("FLUSHALL",), ("CLIENT", "LIST"), ("XLEN", "s")):
            await wire.ask(*words)
    lines = [json.loads(record.message) for record in caplog.records]
    assert [(line["actor"], line["act"], line["outcome"]) for line in lines] == [
        ("bob", "resp.flushall", "refused"),
        ("eve", "resp.flushall", "asked"),
    ]


async def test_who_is_limited_to_namespaces_reaches_nobody_else(
    front: Front, open_wire: Opener
) -> None:
    wire = await _as(open_wire, front, "limited")
    assert b"XLEN" in await wire.ask("XLEN", "shop.s")
    for words in (("FLUSHALL",), ("CLIENT", "LIST"), ("CLIENT", "UNBLOCK", "1")):
        assert (await wire.ask(*words)).startswith(b"-NOPERM")


async def test_each_caller_has_an_executor_of_its_own(
    front: Front, doorman: Doorman, open_wire: Opener, executors: dict[Caller, Recording]
) -> None:
    wire = await _as(open_wire, front, "reader")
    await wire.ask("XLEN", "first")
    await wire.ask("AUTH", "writer")
    await wire.ask("XLEN", "second")
    assert executors[doorman.callers["reader"]].calls == [[[b"XLEN", b"first"]]]
    assert executors[doorman.callers["writer"]].calls == [[[b"XLEN", b"second"]]]
    assert await wire.ask("RESET") == b"+RESET\r\n"
    assert await wire.ask("XLEN", "third") == _NOAUTH


async def test_a_token_that_is_revoked_ends_its_connections(
    front: Front, doorman: Doorman, open_wire: Opener
) -> None:
    idle, waiting = [await _as(open_wire, front, "reader") for _ in range(2)]
    other = await _as(open_wire, front, "writer")
    waiting.send(packed("XREAD", "BLOCK", "0", "STREAMS", "s", "$"))
    await until_met(lambda: front.counts.waiting)
    doorman.is_away = True
    await front.recheck()
    assert front.counts.connections == 3
    doorman.is_away = False
    del doorman.callers["reader"]
    await front.recheck()
    for wire in (idle, waiting):
        assert await wire.rest() == b"-NOAUTH the token is no longer good\r\n"
    assert await other.ask("PING") == b"+PONG\r\n"


async def test_a_role_that_changes_is_heeded(
    front: Front, doorman: Doorman, open_wire: Opener
) -> None:
    wire = await _as(open_wire, front, "writer")
    assert b"DEL" in await wire.ask("DEL", "s")
    doorman.callers["writer"] = Caller("bob", Role.READ)
    await front.recheck()
    assert (await wire.ask("DEL", "s")).startswith(b"-NOPERM")


async def test_a_stranger_does_not_stay(doorman: Doorman, open_wire: Opener) -> None:
    limits = RespLimits(stranger_s=0.1)
    async with serving(Front(lambda _c: Recording(), doorman.authenticate, limits=limits)) as port:
        stranger, known = await open_wire(port), await open_wire(port)
        assert await known.ask("AUTH", "reader") == _OK
        assert await stranger.rest() == b""
        assert await known.ask("PING") == b"+PONG\r\n"

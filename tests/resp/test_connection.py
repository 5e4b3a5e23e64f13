"""How commands of a connection are run: together, in order, and never at the cost of others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from queen.errors import OutcomeUnknown, QueenError, Unavailable
from queen.server.protocol.connections import ConnectionLimits
from queen.server.protocol.rates import Rates
from queen.server.resp.front import Front, RespLimits
from tests.resp.conftest import Opener, serving
from tests.resp.executors import Recording
from tests.resp.wire import packed
from tests.waiting import until_met

_PONG = b"+PONG\r\n"
_MB = 1024 * 1024


@pytest.fixture
async def executor() -> Recording:
    return Recording()


@pytest.fixture
async def front(executor: Recording) -> AsyncIterator[Front]:
    front = Front(lambda _caller: executor)
    async with serving(front):
        yield front


_BLOCKING = ("XREAD", "BLOCK", "0", "STREAMS", "s", "$")


# ---- pipelines ----


async def test_a_pipeline_is_run_in_one_call(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    wire.send(b"".join(packed("XADD", "s", "*", "f", str(n)) for n in range(300)))
    for n in range(300):
        assert (await wire.reply()).endswith(b"%d\r\n" % n)
    assert [len(call) for call in executor.calls] == [300]


async def test_what_has_long_replies_is_run_in_small_calls(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    wire.send(packed("XRANGE", "s", "-", "+") * 100)
    for _ in range(100):
        await wire.reply()
    assert max(len(call) for call in executor.calls) <= 16


async def test_own_commands_are_answered_between_the_others(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    wire.send(packed("XLEN", "a") + packed("PING") + packed("XLEN", "b") + packed("QUUX"))
    assert b"a" in await wire.reply()
    assert await wire.reply() == _PONG
    assert b"b" in await wire.reply()
    assert (await wire.reply()).startswith(b"-ERR unknown command 'QUUX'")


async def test_when_nothing_was_run_every_command_is_told(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    for error, beginning in (
        (Unavailable(), b"-TRYAGAIN "),
        (OutcomeUnknown(), b"-ERR outcome unknown: "),
        (QueenError("odd"), b"-ERR odd"),
    ):
        executor.fail_with(error)
        wire.send(packed("XLEN", "a") * 3 + packed("PING"))
        for _ in range(3):
            assert (await wire.reply()).startswith(beginning)
        assert await wire.reply() == _PONG
    assert front.counts.failures == 9


async def test_an_error_nobody_thought_of_ends_no_connection(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    executor.error = RuntimeError("secret")
    wire = await open_wire(front.port)
    assert await wire.ask("XLEN", "a") == b"-ERR internal error\r\n"
    assert await wire.ask("PING") == _PONG


async def test_what_was_sent_before_the_end_is_run_and_answered(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    wire.send(packed("XLEN", "a") + packed("XLEN", "b"))
    wire.writer.write_eof()
    assert (await wire.rest()).count(b"XLEN") == 2


async def test_what_was_sent_is_run_although_the_client_has_gone(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    executor.may_go.clear()
    wire = await open_wire(front.port)
    wire.send(packed("XDEL", "s", "1"))
    await until_met(lambda: executor.calls)
    wire.send(packed("XLEN", "s") + packed("XDEL", "s", "2"))
    await wire.close()
    executor.may_go.set()
    await until_met(lambda: [b"XDEL", b"s", b"2"] in executor.calls[-1])


# ---- waiting ----


async def test_a_wait_holds_up_only_its_own_connection(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    waiting, other = await open_wire(front.port), await open_wire(front.port)
    waiting.send(packed("PING") + packed(*_BLOCKING) + packed("ECHO", "behind"))
    # What came before is answered before the wait.
    assert await waiting.reply() == _PONG
    await until_met(lambda: executor.waiting)
    assert await other.ask("PING") == _PONG
    assert b"blocked_clients:1\r\n" in await other.ask("INFO", "clients")
    executor.let_go.set()
    assert await waiting.reply() == b"*-1\r\n"
    assert await waiting.reply() == b"$6\r\nbehind\r\n"
    assert b"blocked_clients:0\r\n" in await other.ask("INFO", "clients")


@pytest.mark.parametrize("ends_properly", [True, False])
async def test_nobody_waits_for_a_client_that_has_gone(
    ends_properly: bool, front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    wire.send(packed(*_BLOCKING) + packed("XLEN", "behind"))
    await until_met(lambda: executor.waiting)
    if ends_properly:
        await wire.close()
    else:
        wire.writer.transport.abort()
    await until_met(lambda: executor.cancelled and not front.clients)
    assert front.counts.waiting == 0


@pytest.mark.parametrize(
    ("reason", "reply"),
    [
        ((), b"*-1\r\n"),
        (("TIMEOUT",), b"*-1\r\n"),
        (("ERROR",), b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
    ],
)
async def test_a_client_can_be_unblocked(
    reason: tuple[str, ...],
    reply: bytes,
    front: Front,
    executor: Recording,
    open_wire: Opener,
) -> None:
    waiting, other = await open_wire(front.port), await open_wire(front.port)
    number = (await waiting.ask("CLIENT", "ID")).strip(b":\r\n")
    assert await other.ask("CLIENT", "UNBLOCK", number) == b":0\r\n"
    waiting.send(packed(*_BLOCKING))
    await until_met(lambda: front.counts.waiting)
    assert await other.ask("CLIENT", "UNBLOCK", number, *reason) == b":1\r\n"
    assert await waiting.reply() == reply
    assert await waiting.ask("PING") == _PONG


async def test_who_waits_is_told_that_the_server_stops(
    executor: Recording, open_wire: Opener
) -> None:
    front = Front(lambda _caller: executor)
    async with serving(front) as port:
        wire, idle = await open_wire(port), await open_wire(port)
        assert await idle.ask("PING") == _PONG
        wire.send(packed(*_BLOCKING) + packed("PING"))
        await until_met(lambda: front.counts.waiting)
    assert await wire.rest() == b"-UNBLOCKED the server is stopping\r\n"
    assert await idle.rest() == b""


async def test_commands_under_way_are_answered_before_the_end(
    executor: Recording, open_wire: Opener
) -> None:
    front = Front(lambda _caller: executor)
    executor.may_go.clear()
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.send(packed("XLEN", "a"))
        await until_met(lambda: executor.calls)
        asyncio.get_running_loop().call_later(0.05, executor.may_go.set)
    assert b"XLEN" in await wire.rest()


# ---- transactions ----


async def test_a_transaction_is_run_at_once(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    commands = (("XLEN", "a"), ("PING",), _BLOCKING, ("ECHO", "x"))
    wire.send(packed("MULTI") + b"".join(packed(*words) for words in commands) + packed("EXEC"))
    assert await wire.reply() == b"+OK\r\n"
    for _ in commands:
        assert await wire.reply() == b"+QUEUED\r\n"
    answer = await wire.reply()
    assert answer.startswith(b"*4\r\n*2\r\n$4\r\nXLEN\r\n") and answer.endswith(b"$1\r\nx\r\n")
    assert [len(call) for call in executor.atomic_calls] == [2]
    assert not executor.calls


async def test_what_does_not_belong_into_a_transaction_is_refused(
    front: Front, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    await wire.ask("MULTI")
    assert await wire.ask("MULTI") == b"-ERR MULTI calls can not be nested\r\n"
    assert await wire.ask("WATCH", "s") == b"-ERR WATCH inside MULTI is not allowed\r\n"
    assert await wire.ask("EXEC") == b"*0\r\n"
    assert (await wire.ask("WATCH", "s")).startswith(b"-ERR WATCH is not supported")
    for words in (("AUTH", "x"), ("HELLO", "3"), ("CLIENT", "REPLY", "OFF")):
        await wire.ask("MULTI")
        refused = await wire.ask(*words)
        assert refused == b"-ERR Command not allowed inside a transaction\r\n"
        await wire.ask("DISCARD")


async def test_a_transaction_that_cannot_be_run_says_so(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    executor.fail_with(Unavailable())
    wire = await open_wire(front.port)
    await wire.ask("MULTI")
    await wire.ask("XLEN", "a")
    assert (await wire.ask("EXEC")).startswith(b"-TRYAGAIN ")
    assert await wire.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"


async def test_a_transaction_ends_with_reset(front: Front, open_wire: Opener) -> None:
    wire = await open_wire(front.port)
    await wire.ask("HELLO", "3")
    await wire.ask("CLIENT", "SETNAME", "me")
    await wire.ask("MULTI")
    assert await wire.ask("RESET") == b"+RESET\r\n"
    assert await wire.ask("EXEC") == b"-ERR EXEC without MULTI\r\n"
    assert await wire.ask("CLIENT", "GETNAME") == b"$-1\r\n"


# ---- replies that are not wanted ----


async def test_replies_can_be_turned_off_and_skipped(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    wire = await open_wire(front.port)
    off = packed("CLIENT", "REPLY", "OFF") + packed("XLEN", "a") + packed("PING")
    on = packed("CLIENT", "REPLY", "ON")
    skip = packed("CLIENT", "REPLY", "SKIP") + packed("XLEN", "b") + packed("XLEN", "c")
    wire.send(off + on + skip)
    assert await wire.reply() == b"+OK\r\n"
    assert b"\r\nc\r\n" in await wire.reply()
    assert sum(len(call) for call in executor.calls) == 3


# ---- the end of a connection ----


async def test_quit_and_kill(front: Front, open_wire: Opener) -> None:
    first, second, third = [await open_wire(front.port) for _ in range(3)]
    number = (await second.ask("CLIENT", "ID")).strip(b":\r\n")
    assert (await first.ask("CLIENT", "LIST")).count(b"\nid=") == 3
    assert await first.ask("CLIENT", "KILL", "ID", number) == b":1\r\n"
    assert await second.rest() == b""
    address = third.writer.get_extra_info("sockname")
    assert await first.ask("CLIENT", "KILL", f"{address[0]}:{address[1]}") == b"+OK\r\n"
    assert await third.rest() == b""
    first.send(packed("PING") + packed("QUIT") + packed("PING"))
    assert await first.rest() == _PONG + b"+OK\r\n"


async def test_too_many_clients_are_turned_away(executor: Recording, open_wire: Opener) -> None:
    limits = RespLimits(connections=ConnectionLimits(total=2))
    async with serving(Front(lambda _caller: executor, limits=limits)) as port:
        first, second = await open_wire(port), await open_wire(port)
        assert await first.ask("PING") == await second.ask("PING") == _PONG
        third = await open_wire(port)
        assert await third.rest() == b"-ERR max number of clients reached\r\n"
        assert await second.ask("PING") == _PONG


async def test_a_caller_that_asks_too_often_is_told(executor: Recording, open_wire: Opener) -> None:
    front = Front(lambda _caller: executor, rates=Rates(5.0, clock=lambda: 0.0))
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.send(packed("XLEN", "a") * 10)
        for _ in range(10):
            assert b"XLEN" in await wire.reply()
        assert (await wire.ask("XLEN", "a")).startswith(b"-TRYAGAIN more than 5 requests a second")
        assert await wire.ask("PING") == _PONG


# ---- limits ----


async def test_a_client_that_does_not_read_is_held_up(
    front: Front, executor: Recording, open_wire: Opener
) -> None:
    """What it asks for is not even run: its replies would have nowhere to go."""
    executor.reply = b"x" * _MB
    wire = await open_wire(front.port)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sent = 200
    wire.send(packed("XRANGE", "s", "-", "+") * sent)
    await until_met(lambda: executor.calls)
    neighbour = await open_wire(front.port)
    for _ in range(50):
        assert await neighbour.ask("PING") == _PONG
    run = sum(len(call) for call in executor.calls)
    assert run < sent
    wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(sent):
        assert len(await wire.reply()) > _MB


async def test_a_client_that_leaves_too_much_unread_is_hung_up_on(
    executor: Recording, open_wire: Opener
) -> None:
    executor.reply = b"x" * _MB
    front = Front(lambda _caller: executor, limits=RespLimits(unread_bytes=8 * _MB))
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        wire.send(packed("XRANGE", "s", "-", "+") * 16)
        await until_met(lambda: front.counts.evicted == 1 and not front.clients)


async def test_a_client_that_reads_nothing_for_long_is_hung_up_on(
    executor: Recording, open_wire: Opener
) -> None:
    executor.reply = b"x" * 8 * _MB
    limits = RespLimits(connections=ConnectionLimits(write_timeout_s=0.1))
    front = Front(lambda _caller: executor, limits=limits)
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
        wire.send(packed("XRANGE", "s", "-", "+"))
        await until_met(lambda: front.counts.accepted == 1 and not front.clients)


async def test_commands_behind_a_wait_are_bounded(executor: Recording, open_wire: Opener) -> None:
    limits = RespLimits(request_bytes=2 * _MB)
    front = Front(lambda _caller: executor, limits=limits)
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.send(packed(*_BLOCKING))
        await until_met(lambda: executor.waiting)
        wire.send(packed("ECHO", b"x" * 1000) * 6000)
        await until_met(lambda: front.counts.evicted == 1 and executor.cancelled)


async def test_a_transaction_is_bounded(executor: Recording, open_wire: Opener) -> None:
    limits = RespLimits(request_bytes=2 * _MB)
    front = Front(lambda _caller: executor, limits=limits)
    async with serving(front) as port:
        wire = await open_wire(port)
        wire.send(packed("MULTI") + packed("ECHO", b"x" * 1000) * 6000)
        await until_met(lambda: front.counts.evicted == 1)
        assert not executor.atomic_calls


async def test_all_clients_together_are_bounded(executor: Recording, open_wire: Opener) -> None:
    limits = RespLimits(held_bytes=8 * _MB)
    front = Front(lambda _caller: executor, limits=limits)
    async with serving(front) as port:
        small = await open_wire(port)
        for _ in range(10):
            wire = await open_wire(port)
            # Each sends all but the end of a large command.
            wire.send(packed("ECHO", b"x" * 2 * _MB)[:-1])
        await until_met(lambda: front.counts.evicted >= 5)
        assert front.held_bytes <= 8 * _MB
        assert await small.ask("PING") == _PONG


async def test_a_command_that_stops_in_its_middle_ends_its_connection(
    executor: Recording, open_wire: Opener
) -> None:
    front = Front(lambda _caller: executor, limits=RespLimits(command_s=0.1))
    async with serving(front) as port:
        slow, idle = await open_wire(port), await open_wire(port)
        assert await idle.ask("PING") == _PONG
        slow.send(b"*2\r\n$4\r\nECHO\r\n$5\r\nhe")
        assert await slow.rest() == b""
        assert await idle.ask("PING") == _PONG

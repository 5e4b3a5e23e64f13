"""Everybody works while everything is merged, again and again, by two servers at once."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import asyncpg
import pytest

from queen.core.ids import message_id, partition_uuid
from queen.core.visibility import DELETED
from queen.errors import Unavailable
from queen.storage.database import Database
from queen.wire.frames.joined_frame import ANY_ORDER, JOINED, PLAIN
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.leasedcalls import ByIds, BySpans, Way
from tests.contract.test_retention import run
from tests.contract.test_sealed_reads import cut
from tests.contract.test_sealed_reads import plan as plan_by_http
from tests.frame_contents import Told, told
from tests.long import IS_LONG
from tests.merged import merging
from tests.merged.answers import ROOT, ask_frames, fetch_path, in_order_of_time
from tests.merged.conftest import check_rows

_SECONDS = 30.0 if IS_LONG else 3.0
_PARTITIONS = ("a", "b", "c")


class Work:
    """What everybody has done, as it was answered."""

    def __init__(self, urls: list[str], queue: str) -> None:
        self.urls = urls
        self.queue = queue
        self.ends_at = time.monotonic() + _SECONDS
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        # By message id: partition and transaction id.
        self.pushed: dict[str, tuple[str, str]] = {}
        self.erased: set[str] = set()
        # By group, each message in the order in which it was done.
        self.done: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.merged = 0

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends_at

    def push(self, seed: int) -> None:
        rng = random.Random(seed)
        with closing(Api(self.urls[seed % 2])) as api:
            while self.goes_on:
                partition = rng.choice(_PARTITIONS)
                items = [
                    {
                        "queue": self.queue,
                        "partition": partition,
                        "transactionId": uuid.uuid4().hex,
                        "payload": {"text": "ü" * rng.choice([1, 1, 1, 500])},
                    }
                    for _ in range(rng.choice([1, 1, 1, 3]))
                ]
                answer = api.push(*items)
                assert answer.status == 201, answer.raw
                with self._lock:
                    for one in answer.json:
                        self.pushed[one["message_id"]] = (partition, one["transaction_id"])

    def push_again(self, seed: int) -> None:
        """Push what is there already: it is refused, with the id that it has."""
        rng = random.Random(seed)
        with closing(Api(self.urls[seed % 2])) as api:
            while self.goes_on:
                known = self.some(rng, 5)
                if known:
                    items = [
                        {"queue": self.queue, "partition": at, "transactionId": name, "payload": 1}
                        for _, (at, name) in known
                    ]
                    answers = api.push(*items).json
                    assert {one["status"] for one in answers} == {"duplicate"}, answers
                    assert [one["message_id"] for one in answers] == [name for name, _ in known]

    def some(self, rng: random.Random, count: int) -> list[tuple[str, tuple[str, str]]]:
        with self._lock:
            known = list(self.pushed.items())
        return rng.sample(known, min(count, len(known)))

    def consume(self, seed: int, group: str, way: Way, shared: str) -> None:
        rng = random.Random(seed)
        query = {"consumerGroup": group, "batch": 20, "partitions": 2, "shared": shared}
        with closing(Api(self.urls[seed % 2])) as api:
            while True:
                was_over = self.is_over.is_set()
                page = way.pop(api, self.queue, **query)  # type: ignore[arg-type]
                if not page and was_over:
                    return
                statuses = [rng.choice(["completed"] * 9 + ["failed"]) for _ in page]
                if shared == "false":
                    # Behind a failure nothing is done: that would come in another order.
                    first = statuses.index("failed") if "failed" in statuses else len(page)
                    statuses = ["completed"] * first + ["failed"] * (len(page) - first)
                if page:
                    lost, dead = way.settle(api, group, page, statuses)
                    assert (lost, dead) == (0, 0) or shared == "false"
                    with self._lock:
                        self.done[group] += [
                            one
                            for one, status in zip(page, statuses, strict=True)
                            if status == "completed"
                        ]

    def erase(self, seed: int) -> None:
        rng = random.Random(seed)
        with closing(Api(self.urls[seed % 2])) as api:
            while self.goes_on:
                for name, (_, transaction_id) in self.some(rng, 1):
                    partition = partition_of(name)
                    wanted = 404 if name in self.erased else 200
                    with self._lock:
                        self.erased.add(name)
                    path = f"/api/v1/messages/{partition}/{transaction_id}"
                    answer = api.call("DELETE", path)
                    assert answer.status == wanted, f"{name}: {answer.status}, not {wanted}"

    def read(self, seed: int) -> None:
        """Whatever is read of a partition at any moment has no holes.

        A queue that is not sealed may have some: what is stored a little later may be older.
        """
        rng = random.Random(seed)
        with closing(Api(self.urls[seed % 2])) as api:
            while self.goes_on:
                partition = rng.choice([None, *_PARTITIONS])
                path = fetch_path(self.queue, partition)
                if api.call("GET", path).status == 404:
                    continue
                accepted = rng.choice([PLAIN, JOINED, ANY_ORDER])
                messages = in_order_of_time(ask_frames(api, path, accepted=accepted))
                check_order(messages, path, may_have_holes=partition is None)

    def read_batches(self, seed: int) -> None:
        """Read by sealed time, batch by batch: everything comes once."""
        found: list[Told] = []
        since = 0
        with closing(Api(self.urls[seed % 2])) as api:
            while not found and self.goes_on and not self.pushed:
                pass
            while True:
                was_over = self.is_over.is_set()
                until = cut(api, self.queue)["sealed"]
                planned = plan_by_http(api, {self.queue: since}, until, slices=3)
                count = len(found)
                for part in planned["slices"]:
                    body = {"ranges": part["ranges"]}
                    frames = ask_frames(api, f"{ROOT}/slice", body, accepted=ANY_ORDER)
                    found += in_order_of_time(frames)
                assert len(found) - count == planned["messages"], f"from {since} to {until}"
                since = until
                if was_over:
                    break
        check_order(found, "batches")
        assert {message_id(one.partition_id, one.offset) for one in found} == set(self.pushed)

    async def merge(self, dsn: str) -> None:
        while not self.is_over.is_set():
            counts = await asyncio.gather(
                *(merging.merge_all(dsn) for _ in range(2)), return_exceptions=True
            )
            for count in counts:
                # What has changed meanwhile is not merged: another round takes it.
                if isinstance(count, BaseException) and not isinstance(count, Unavailable):
                    raise count
                self.merged += count if isinstance(count, int) else 0
            await asyncio.sleep(0)


def partition_of(name: str) -> str:
    """Return the partition of a message by its id, as routes take it."""
    return f"{name[:18]}-bfff-ffffffffffff"


def check_order(messages: list[Told], what: str, *, may_have_holes: bool = False) -> None:
    """Every partition is there from its beginning, without holes and in the order of time."""
    heads: dict[int, int] = defaultdict(int)
    last = (0, 0, -1)
    for one in messages:
        head = heads[one.partition_id]
        is_next = one.offset >= head if may_have_holes else one.offset == head
        assert is_next, f"{what}: {one.partition} has {one.offset} after {head - 1}"
        heads[one.partition_id] = one.offset + 1
        place = (one.created_at_us, one.partition_id, one.offset)
        assert place > last or what.startswith("batches"), f"{what}: {place} after {last}"
        last = place


async def test_everything_is_read_once_and_in_order(
    server: ServerProcess,
    second_server: ServerProcess,
    merging_dsn: str,
    queue: str,
    api: Api,
    connection: asyncpg.Connection,
) -> None:
    api.configure(queue, retryDelay=0, retryLimit=1_000_000)
    work = Work([server.url, second_server.url], queue)
    jobs: list[tuple[Callable[..., None], Any]] = [
        (work.push, (1,)),
        (work.push, (2,)),
        (work.push_again, (3,)),
        (work.erase, (4,)),
        (work.read, (5,)),
    ]
    last: list[tuple[Callable[..., None], Any]] = [
        (work.consume, (6, "json", ByIds(), "false")),
        (work.consume, (7, "frames", BySpans(), "false")),
        (work.consume, (8, "shared", BySpans(), "true")),
        (work.consume, (9, "shared", ByIds(), "true")),
        (work.read_batches, (10,)),
    ]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(len(jobs) + len(last)) as pool:
        merges = asyncio.create_task(work.merge(merging_dsn))
        later = [loop.run_in_executor(pool, work_on, *arguments) for work_on, arguments in last]
        results = await asyncio.gather(
            *(loop.run_in_executor(pool, work_on, *arguments) for work_on, arguments in jobs),
            return_exceptions=True,
        )
        work.is_over.set()
        results += await asyncio.gather(*later, merges, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    # On a busy machine all of them may have come to a range that somebody was at.
    work.merged += await merging.merge_all(merging_dsn)
    check_done(work)
    check_stored(api, work)
    await check_rows(connection, queue)
    assert work.merged


def check_done(work: Work) -> None:
    """Every message that was confirmed is done once, and in its order where that is promised."""
    for group, messages in work.done.items():
        ids = [one["id"] for one in messages]
        twice = {name for name in ids if ids.count(name) > 1} if len(set(ids)) < len(ids) else ()
        assert not twice, f"{group}: done twice: {sorted(twice)[:5]}"
        missing = set(work.pushed) - set(ids) - work.erased
        assert not missing, f"{group}: {len(missing)} were never handed out: {sorted(missing)[:5]}"
        assert set(ids) <= set(work.pushed)
        for one in messages:
            told_as = (one["partition"], one["transactionId"])
            assert work.pushed[one["id"]] == told_as, f"{group}: {one['id']} is another message"
        if group != "shared":
            for partition in _PARTITIONS:
                mine = [one["id"] for one in messages if one["partition"] == partition]
                assert mine == sorted(mine), f"{group}: {partition} is out of order"


def check_stored(api: Api, work: Work) -> None:
    messages = told(ask_frames(api, fetch_path(work.queue), accepted=JOINED))
    check_order(messages, "what is stored")
    found = {
        message_id(one.partition_id, one.offset): (one.partition, one.transaction_id)
        for one in messages
    }
    assert found == work.pushed
    deleted = {
        message_id(one.partition_id, one.offset) for one in messages if DELETED in one.extras
    }
    assert deleted == work.erased
    assert all(partition_of(name) == partition_uuid(_number(messages, name)) for name in deleted)


def _number(messages: list[Told], name: str) -> int:
    return next(
        one.partition_id for one in messages if message_id(one.partition_id, one.offset) == name
    )


@pytest.mark.parametrize("how", ["clear", "retention"])
async def test_what_is_removed_meanwhile_leaves_nothing_behind(
    server: ServerProcess,
    second_server: ServerProcess,
    merging_dsn: str,
    queue: str,
    api: Api,
    database: Database,
    connection: asyncpg.Connection,
    how: str,
) -> None:
    work = Work([server.url, second_server.url], queue)
    work.ends_at = time.monotonic() + _SECONDS / 2
    if how == "retention":
        api.configure(queue, retentionEnabled=True, retentionSeconds=1)
    else:
        api.configure(queue)
    loop = asyncio.get_running_loop()

    async def remove() -> None:
        while work.goes_on:
            if how == "retention":
                await run(database)
            else:
                answer = await asyncio.to_thread(remove_all, server.url, queue)
                assert answer == 200

    with ThreadPoolExecutor(3) as pool:
        merges = asyncio.create_task(work.merge(merging_dsn))
        pushes = [loop.run_in_executor(pool, work.push, seed) for seed in (1, 2)]
        results = await asyncio.gather(*pushes, remove(), return_exceptions=True)
        work.is_over.set()
        results += await asyncio.gather(merges, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    await check_rows(connection, queue)
    # What is left is the end of what was pushed.
    messages = told(ask_frames(api, fetch_path(queue), accepted=JOINED))
    left = {message_id(one.partition_id, one.offset) for one in messages}
    assert left <= set(work.pushed)
    for partition in _PARTITIONS:
        mine = sorted(name for name, (at, _) in work.pushed.items() if at == partition)
        kept = [name for name in mine if name in left]
        assert kept == mine[len(mine) - len(kept) :], f"{partition}: a hole"
    assert remove_all(server.url, queue) == 200
    queue_id = await connection.fetchval("select id from queen.queues where name = $1", queue)
    for table in ("segments", "merged_segments"):
        if await connection.fetchval("select to_regclass($1)", f"queen.{table}") is not None:
            count = f"select count(*) from queen.{table} where queue_id = $1"
            assert await connection.fetchval(count, queue_id) == 0


def remove_all(url: str, queue: str) -> int:
    with closing(Api(url)) as api:
        return api.call("DELETE", f"/api/v1/queues/{queue}/clear").status

"""Idle partitions: what a server keeps of each is little, and has a bound."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from typing import cast

import pytest

from queen.core import ids
from queen.core.options import QueueOptions
from queen.service import catalog as catalog_module
from queen.service.catalog import Catalog, Queue
from queen.service.consume import feeds
from queen.service.consume.feeds import Feed
from queen.service.events import Events
from queen.storage.database import Database

_MANY = 20_000
_MOST_BYTES = 300


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(cast("Database", None), Events())


@pytest.fixture
def queue() -> Queue:
    return Queue(1, "q", "", "", QueueOptions())


def test_a_partition_that_nobody_uses_takes_few_bytes(catalog: Catalog, queue: Queue) -> None:
    at = datetime.now(UTC)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(1000, 1000 + _MANY):
        partition = catalog.remember_row(queue, number, f"customer-{number}", number * 1000)
        partition.knows(number * 1000, at)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / _MANY < _MOST_BYTES


def test_ids_as_they_are_on_the_wire_are_kept_of_some(catalog: Catalog, queue: Queue) -> None:
    partition = catalog.remember_row(queue, 7, "p", 0)
    assert partition.uuid == "00000000-0000-8007-bfff-ffffffffffff"
    assert partition.prefix == "00000000-0000-8007-8000-"
    for compute in (ids.partition_uuid, ids.message_prefix):
        assert compute.cache_info().maxsize is not None


def test_a_catalog_forgets_the_oldest_and_no_more_than_it_must(
    catalog: Catalog, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "_MAX_PARTITIONS", 100)
    monkeypatch.setattr(catalog_module, "_FORGOTTEN", 10)
    for number in range(1, 112):
        catalog.remember_row(queue, number, f"p{number}", 1)
    assert catalog.sizes().partitions == len(queue.partitions) == 91
    assert catalog.partition_by_id(20) is None and catalog.partition_by_id(21) is not None


def test_a_feed_remembers_how_far_its_group_is_of_those_of_late(
    catalog: Catalog, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "_POSITIONS", 10)
    feed = Feed(queue, "g", 1)
    partitions = [catalog.remember_row(queue, number, f"p{number}", 5) for number in range(1, 31)]
    for partition in partitions:
        feed.set_position(partition, 5)
    assert len(feed._position) + len(feed._older) <= 20
    # Nothing is there in either; of the one that was forgotten a claim finds out.
    feed.offer(partitions[-1])
    feed.offer(partitions[-15])
    assert not feed.has_ready
    feed.offer(partitions[0])
    assert feed.take(10) == [partitions[0]]
    feed.claiming.clear()
    partitions[-15].saw_head(6)
    feed.offer(partitions[-15])
    assert feed.take(10) == [partitions[-15]]


def test_a_feed_that_was_moved_believes_nothing_of_either(catalog: Catalog, queue: Queue) -> None:
    feed = Feed(queue, "g", 1)
    partition = catalog.remember_row(queue, 1, "p", 5)
    feed.set_position(partition, 5)
    feed._older, feed._position = feed._position, {}
    feed.reset()
    feed.offer(partition)
    assert feed.has_ready

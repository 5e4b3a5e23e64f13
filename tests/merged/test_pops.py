"""Consumers are handed the same messages, wherever their group stands when they are merged."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import pytest

from queen.core.ids import message_id
from queen.wire.answers import iso
from tests.api import Api
from tests.contract.groupcalls import moved
from tests.contract.leasedcalls import ByIds, BySpans, Way
from tests.frame_contents import Told
from tests.merged.answers import same
from tests.merged.conftest import Merge, Write
from tests.merged.history import History, instant_at, microseconds, text_of
from tests.merged.test_fetch import push_all_kinds

Messages = dict[str, list[dict[str, Any]]]
_WAYS = pytest.mark.parametrize("way", [ByIds(), BySpans()], ids=["json", "frames"])


def expected(messages: list[Told]) -> list[dict[str, Any]]:
    """Return what a pop has to say of messages."""
    return [
        {
            "id": message_id(one.partition_id, one.offset),
            "transactionId": one.transaction_id,
            "data": json.loads(one.payload),
            "createdAt": iso(instant_at(one.created_at_us)),
            "traceId": one.extras.get("traceId"),
            "partition": one.partition,
            "retryCount": 0,
        }
        for one in messages
    ]


def shown(history: History, group: str, since_us: int = 0) -> Messages:
    return {
        name: wanted
        for name, messages in history.shown(group).items()
        if (wanted := expected([one for one in messages if one.created_at_us >= since_us]))
    }


def by_partition(messages: list[dict[str, Any]]) -> Messages:
    """Return messages as each partition has them, without what is of their pop alone."""
    found: Messages = defaultdict(list)
    fields = ("id", "transactionId", "data", "createdAt", "traceId", "partition", "retryCount")
    for one in messages:
        found[one["partition"]].append({name: one[name] for name in fields})
    return dict(found)


def compare(messages: list[dict[str, Any]], wanted: Messages, what: str) -> None:
    same(by_partition(messages), wanted, what)


def drain(api: Api, way: Way, queue: str, group: str, **query: Any) -> list[dict[str, Any]]:
    """Pop and acknowledge until nothing is left."""
    found: list[dict[str, Any]] = []
    batch = query.get("batch", 1)
    while page := way.pop(api, queue, consumerGroup=group, **query):
        assert len(page) <= batch
        found += page
        assert way.settle(api, group, page, ["completed"] * len(page)) == (0, 0)
    return found


@_WAYS
@pytest.mark.parametrize(("batch", "partitions"), [(1, 1), (7, 1), (7, 3), (100, 1), (100, 10)])
async def test_a_new_group_gets_everything_in_order(
    api: Api, write: Write, merge: Merge, way: Way, batch: int, partitions: int
) -> None:
    history = await write(stretches=40 if batch == 1 else 160, large=0 if batch == 1 else 3)
    query = {"batch": batch, "partitions": partitions, "subscriptionMode": "all"}
    for group in ("before", "only", "after", "only too"):
        if group == "after":
            await merge(history.queue)
            moved(api, "only", history.queue, toBeginning=True)
        name = "only" if group == "only too" else group
        compare(drain(api, way, history.queue, name, **query), shown(history, name), group)


@_WAYS
async def test_a_group_that_begins_at_a_time_gets_what_is_not_older(
    api: Api, history: History, merge: Merge, rng: random.Random, way: Way
) -> None:
    times = rng.sample(history.boundaries(rng, 8), 8)

    def check(when: str) -> None:
        for number, at in enumerate(times):
            group = f"{when} {number}"
            query: dict[str, Any] = {
                "batch": 100,
                "partitions": 10,
                "subscriptionFrom": text_of(at),
            }
            found = drain(api, way, history.queue, group, **query)
            compare(found, shown(history, group, microseconds(at)), f"{group}: {at}")

    check("before")
    await merge(history.queue)
    check("after")


@_WAYS
async def test_groups_in_the_middle_go_on_where_they_stand(
    api: Api, history: History, merge: Merge, rng: random.Random, way: Way
) -> None:
    """Cursors, leases and failures inside of what is merged stay what they are."""
    api.configure(history.queue, retryDelay=0, retryLimit=100)
    groups = [f"g{number}" for number in range(6)]
    found: dict[str, list[dict[str, Any]]] = {group: [] for group in groups}
    held: dict[str, list[dict[str, Any]]] = {}
    for group in groups:
        for _ in range(rng.randrange(12)):
            page = way.pop(api, history.queue, consumerGroup=group, batch=rng.choice([1, 3, 7]))
            way.settle(api, group, page, ["completed"] * len(page))
            found[group] += page
        held[group] = way.pop(api, history.queue, consumerGroup=group, batch=9, partitions=4)
        # Some of a lease are done, and the others are done when it is merged.
        done, held[group] = held[group][:4], held[group][4:]
        if done:
            assert way.settle(api, group, done, ["completed"] * len(done)) == (0, 0)
        found[group] += done
    await merge(history.queue)
    for group in groups:
        if held[group]:
            statuses = ["completed"] * len(held[group])
            assert way.settle(api, group, held[group], statuses) == (0, 0)
        found[group] += held[group]
        found[group] += drain(api, way, history.queue, group, batch=7, partitions=3)
        compare(found[group], shown(history, group), group)


@_WAYS
async def test_what_fails_comes_again(
    api: Api, history: History, merge: Merge, rng: random.Random, way: Way
) -> None:
    """Leased before the merge, given back after it; and then leased again."""
    api.configure(history.queue, retryDelay=0, retryLimit=100)
    first = way.pop(api, history.queue, consumerGroup="g", batch=20, partitions=5)
    await merge(history.queue)
    way.settle(api, "g", first, ["failed"] * len(first))
    done: dict[str, dict[str, Any]] = {}
    tries = 0
    while page := way.pop(api, history.queue, consumerGroup="g", batch=7, partitions=3):
        statuses = [rng.choice(["completed", "completed", "failed"]) for _ in page]
        lost, dead = way.settle(api, "g", page, statuses)
        assert dead == 0
        for message, status in zip(page, statuses, strict=True):
            if status == "completed":
                done[message["id"]] = {**message, "retryCount": 0}
        tries += 1
        assert tries < 2000, f"{len(done)} of {len(history.messages())} are done"
        assert lost >= 0
    messages = sorted(done.values(), key=lambda one: (one["partitionId"], one["id"]))
    compare(messages, shown(history, "g"), "what was done in the end")


@_WAYS
async def test_a_shared_group_gets_everything_once(
    api: Api, history: History, merge: Merge, way: Way
) -> None:
    query: dict[str, Any] = {"batch": 5, "shared": "true", "consumerGroup": "g"}
    held = [way.pop(api, history.queue, **query) for _ in range(6)]
    for page in held[:3]:
        assert way.settle(api, "g", page, ["completed"] * len(page)) == (0, 0)
    await merge(history.queue)
    for page in held[3:]:
        assert way.settle(api, "g", page, ["completed"] * len(page)) == (0, 0)
    found = [message for page in held for message in page]
    found += drain(api, way, history.queue, "g", batch=7, shared="true")
    assert len({one["id"] for one in found}) == len(found), "some came twice"
    found.sort(key=lambda one: (one["partitionId"], one["id"]))
    compare(found, shown(history, "g"), "a shared group")


async def test_leases_that_were_granted_before_are_acked_by_offsets_and_ids(
    api: Api, history: History, merge: Merge
) -> None:
    leased = BySpans().pop(api, history.queue, consumerGroup="g", batch=50, partitions=5)
    await merge(history.queue)
    ids = [{**one, "consumerGroup": "g"} for one in leased]
    answer = api.ack_batch(ids, group="g")
    assert all(one["success"] for one in answer.json["results"]), answer.raw
    found = leased + drain(api, ByIds(), history.queue, "g", batch=100, partitions=5)
    compare(found, shown(history, "g"), "acked by their ids")


async def test_one_partition_is_popped_alone(api: Api, history: History, merge: Merge) -> None:
    async def check(group: str) -> None:
        for name, wanted in shown(history, group).items():
            found: list[dict[str, Any]] = []
            while page := api.messages(
                history.queue, name, consumerGroup=group, batch=7, autoAck="true"
            ):
                found += page
            compare(found, {name: wanted}, f"{group} {name}")

    await check("before")
    await merge(history.queue)
    await check("after")


@_WAYS
async def test_servers_that_remember_what_was_pushed_hand_out_the_same(
    api: Api, other_api: Api, queue: str, merge: Merge, rng: random.Random, way: Way
) -> None:
    """One has pushed it and has it in memory, the other one has read some of it."""
    api.configure(queue)
    pushed = push_all_kinds(api, queue, rng, 80)
    query = {"batch": 100, "partitions": 10, "subscriptionMode": "all"}
    wanted = by_partition(drain(api, way, queue, "before", **query))
    assert sum(map(len, wanted.values())) == len(pushed)
    begun = way.pop(other_api, queue, consumerGroup="begun", batch=20, partitions=3)
    way.settle(other_api, "begun", begun, ["completed"] * len(begun))
    await merge(queue)
    for number, at in enumerate((api, other_api)):
        compare(drain(at, way, queue, f"after {number}", **query), wanted, f"server {number}")
    compare(begun + drain(other_api, way, queue, "begun", **query), wanted, "where it stood")
    # What is pushed behind it is in memory again, and stands beside what is merged.
    more = push_all_kinds(api, queue, rng, 20)
    found = drain(api, way, queue, "both", **query)
    assert len(found) == len(pushed) + len(more)
    held = by_partition(found)
    for name, messages in wanted.items():
        same(held[name][: len(messages)], messages, f"{name} with more behind it")


@_WAYS
async def test_headers_travel_with_their_messages(
    api: Api, history: History, merge: Merge, way: Way
) -> None:
    def answers(group: str) -> dict[str, Any]:
        page = drain(api, way, history.queue, group, batch=1000, partitions=10)
        return {one["id"]: (one.get("headers"), one["producerSub"]) for one in page}

    before = answers("before")
    assert isinstance(way, BySpans) or any(headers for headers, _ in before.values())
    await merge(history.queue)
    same(answers("after"), before, "headers")

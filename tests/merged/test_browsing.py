"""Messages are listed, found, erased, set aside and tried again as if they were never merged."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

from queen.core.ids import message_id, partition_uuid
from queen.core.visibility import DELETED
from tests.api import Answer, Api
from tests.contract.test_dead_letters import dlq, retry
from tests.frame_contents import Told
from tests.merged.answers import fetch_path, read, same, without
from tests.merged.conftest import Merge
from tests.merged.history import History, text_of
from tests.merged.test_pops import by_partition

_EVER = {"from": text_of(datetime.now(UTC) - timedelta(hours=20))}


def listed(api: Api, **query: Any) -> Any:
    answer = api.call("GET", f"/api/v1/messages?{urlencode(query)}")
    assert answer.status == 200, answer.raw
    return answer.json


def about(
    api: Api, one: Told, method: str = "GET", verb: str = "", *, by_id: bool = False
) -> Answer:
    name = message_id(one.partition_id, one.offset) if by_id else quote(one.transaction_id, safe="")
    path = f"/api/v1/messages/{partition_uuid(one.partition_id)}/{name}{verb}"
    return api.call(method, path, {} if method == "POST" else None)


def sample(rng: random.Random, history: History, count: int) -> list[Told]:
    """Return some messages of each kind of neighbourhood."""
    return rng.sample(history.messages(), min(count, len(history.messages())))


async def test_pages_are_the_same_newest_first(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    queue, names = history.queue, list(history.partitions)
    times = [text_of(at) for at in history.boundaries(rng, 10)]
    queries: list[dict[str, Any]] = [{**_EVER, "limit": 1000}]
    for offset in range(0, len(history.messages()), 37):
        queries.append({**_EVER, "limit": 37, "offset": offset})
    for _ in range(12):
        low, high = sorted(rng.sample(times, 2))
        place = {"limit": rng.choice([1, 5, 200]), "offset": rng.choice([0, 0, 3, 20])}
        queries.append({"from": low, "to": high, **place})
        queries.append({"from": low, "to": high, "partition": rng.choice(names), **place})
        after = text_of(datetime.fromisoformat(low) + timedelta(microseconds=1))
        queries.append({"from": low, "to": after, **place})
        queries.append({**_EVER, "to": high, "partition": rng.choice(names), **place})
    for name in names:
        at = rng.randrange(len(history.of(name)))
        queries.append({**_EVER, "partition": name, "at": at, "preview": "true"})
    queries.append({**_EVER, "status": "pending", "limit": 20, "preview": "true"})

    def answers() -> list[Any]:
        return [listed(api, queue=queue, **query) for query in queries]

    before = answers()
    everything = [(one["partition"], one["offset"]) for one in before[0]["messages"]]
    newest = [(one.partition, one.offset) for one in reversed(history.messages())]
    assert sorted(everything) == sorted(newest)
    await merge(queue)
    now = answers()
    for query, ours, theirs in zip(queries, now, before, strict=True):
        same(ours, theirs, f"messages?{urlencode(query)}")


async def test_a_text_is_found(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    texts = ["parcel", "ü", "PARCEL", "back\\slash", "日本", "order-", "nothing has this", '"n": 1']
    texts += [one.transaction_id for one in sample(rng, history, 4)]
    queries = [{**_EVER, "text": text, "limit": 1000} for text in texts]
    queries += [{**_EVER, "text": text, "limit": 3, "offset": 2} for text in texts]

    def answers() -> list[Any]:
        return [listed(api, queue=history.queue, **query) for query in queries]

    before = answers()
    assert any(page["messages"] for page in before)
    await merge(history.queue)
    same(answers(), before, "searches")


async def test_one_message_is_found_by_its_ids(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    some = sample(rng, history, 60)

    def answers() -> list[Any]:
        found = [about(api, one, by_id=by_id) for one in some for by_id in (False, True)]
        assert {one.status for one in found} == {200}
        return [one.json for one in found]

    before = answers()
    await merge(history.queue)
    same(answers(), before, "messages by their ids")


async def test_messages_are_erased_after_the_merge(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    """Erased ones stay erased; others of the same row stay as they are."""
    early = sample(rng, history, 8)
    for one in early:
        assert about(api, one, "DELETE", by_id=True).status == 200
    path = fetch_path(history.queue)
    before = read(api, path)
    await merge(history.queue)
    same(read(api, path), before, "erased before")
    rest = [one for one in history.messages() if one not in early]
    late = rng.sample(rest, 8)
    for one in late:
        assert about(api, one, "DELETE", by_id=True).status == 200
        assert about(api, one, by_id=True).status == 404
    gone = {(one.partition_id, one.offset) for one in (*early, *late)}

    def erased(one: Told) -> Told:
        if (one.partition_id, one.offset) not in gone:
            return one
        extras = {name: value for name, value in one.extras.items() if name != "headers"}
        return one._replace(payload=b"null", extras={**extras, DELETED: True})

    wanted = [erased(one) for one in history.messages()]
    now = read(api, path)
    same(now["messages"], wanted, "erased after")
    same(now["frames"], before["frames"], "what was stored together")
    await merge(history.queue, must=False)
    same(read(api, path), now, "merged again")
    left = listed(api, queue=history.queue, **_EVER, limit=1000)["messages"]
    assert len(left) == len(history.messages()) - len(gone)


async def test_an_erased_message_is_shown_to_no_group(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    await merge(history.queue)
    some = {(one.partition, one.offset): one for one in sample(rng, history, 20)}
    # A server that has read them before must not show them from memory.
    api.messages(history.queue, consumerGroup="earlier", batch=100, partitions=10)
    for one in some.values():
        assert about(api, one, "DELETE", by_id=True).status == 200
    found: list[Any] = []
    while page := api.messages(
        history.queue, consumerGroup="g", batch=100, partitions=10, autoAck="true"
    ):
        found += page
    ids = {name: [one["id"] for one in held] for name, held in by_partition(found).items()}
    wanted = {
        name: [
            message_id(one.partition_id, one.offset)
            for one in messages
            if (name, one.offset) not in some
        ]
        for name, messages in history.shown("g").items()
    }
    same(ids, wanted, "what is left")


async def test_letters_are_those_of_the_messages(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    """Some die before the merge, some after it, and all of them come again in their order."""
    api.configure(history.queue, retryDelay=0, retryLimit=0)
    died: list[dict[str, Any]] = []

    def kill_some() -> None:
        page = api.messages(history.queue, consumerGroup="g", batch=30, partitions=5)
        assert page
        for one in page:
            is_dead = rng.random() < 0.3
            status, more = ("failed", {"error": "bad"}) if is_dead else ("completed", {})
            assert api.ack(one, status, **more).status == 200
            died.extend([one] if is_dead else [])

    kill_some()
    letters = without(dlq(api, queue=history.queue), "failedAt")
    await merge(history.queue)
    same(without(dlq(api, queue=history.queue), "failedAt"), letters, "letters of before")
    for _ in range(3):
        kill_some()
    page = dlq(api, queue=history.queue, limit=1000)
    fields = ("transactionId", "data", "traceId", "createdAt", "partition")
    told = [{name: one[name] for name in fields} for one in page["messages"]]
    wanted = [{name: one[name] for name in fields} for one in died]
    key = json.dumps
    assert sorted(map(key, told)) == sorted(map(key, wanted))
    assert retry(api, queue=history.queue, consumerGroup="g") == len(died)
    found: list[Any] = []
    while more := api.messages(
        history.queue, consumerGroup="g", batch=100, partitions=10, autoAck="true"
    ):
        found += more
    dead = {one["transactionId"] for one in died}
    again = [one for one in found if one["transactionId"] in dead]
    assert sorted(key(one["data"]) for one in again) == sorted(key(one["data"]) for one in died)
    path = fetch_path(history.queue)
    before = read(api, path)
    same(before["messages"][: len(history.messages())], history.messages(), "what was there before")
    await merge(history.queue, must=False)
    same(read(api, path), before, "with those that came again")


async def test_one_message_is_set_aside_by_hand(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    api.pop(history.queue, consumerGroup="g")
    await merge(history.queue)
    one = next(each for each in sample(rng, history, 50) if not each.extras)
    answer = about(api, one, "POST", "/dlq", by_id=True)
    assert answer.status in (200, 409), answer.raw
    if answer.status == 200:
        letters = dlq(api, queue=history.queue)["messages"]
        assert [letter["transactionId"] for letter in letters] == [one.transaction_id]
        assert letters[0]["createdAt"] == text_of(one.created_at_us)


async def test_jobs_stand_where_they_stood(api: Api, queue: str, merge: Merge) -> None:
    """What becomes of a job is looked up in the log."""
    pushed = []
    for number in range(40):
        item = {"queue": queue, "payload": number, "transactionId": f"job-{number}@Default"}
        pushed += api.push(item).json
    done = api.messages(queue, consumerGroup="workers", batch=7)
    finished = [
        {**{name: one[name] for name in ("transactionId", "partitionId", "leaseId")}, "result": at}
        for at, one in enumerate(done)
    ]
    body = {"consumerGroup": "workers", "jobs": finished}
    assert api.call("POST", "/api/v1/jobs/finish", body).status == 200
    api.messages(queue, consumerGroup="workers", batch=3)

    def answers() -> list[Any]:
        found = [
            api.call("GET", f"/api/v1/jobs/{queue}/{quote(one['transaction_id'], safe='')}")
            for one in pushed
        ]
        assert {one.status for one in found} == {200}, found[-1].raw
        return [one.json for one in found]

    before = answers()
    assert len({one["state"] for one in before}) >= 3, {one["state"] for one in before}
    await merge(queue)
    same(answers(), before, "jobs")


async def test_what_is_traced_is_found(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    some = sample(rng, history, 5)
    for one in some:
        event = {"transactionId": one.transaction_id, "data": {"step": 1}, "traceNames": ["n"]}
        event["partitionId"] = partition_uuid(one.partition_id)
        answer = api.call("POST", "/api/v1/traces", event)
        assert answer.status in (200, 201), answer.raw

    def answers() -> list[Any]:
        return [
            api.call(
                "GET",
                f"/api/v1/traces/{partition_uuid(one.partition_id)}"
                f"/{quote(one.transaction_id, safe='')}",
            ).json
            for one in some
        ]

    before = answers()
    await merge(history.queue)
    same(answers(), before, "traces")

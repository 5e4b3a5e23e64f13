"""Where groups stand and how late they are; what is due, and what is of no use any more."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest

from tests.api import Api
from tests.contract.conftest import refresh
from tests.contract.groupcalls import detail, entries, moved, seek
from tests.merged.answers import same, without
from tests.merged.conftest import Merge, Write
from tests.merged.history import History, instant_at, microseconds, text_of
from tests.merged.test_pops import compare, expected, shown

# They grow while the test runs, and so differ by less than it may take.
_SECONDS = {"timeLagSeconds", "time_lag_seconds", "maxTimeLag", "lagSeconds", "seconds", "age"}
_LATE_S = 60.0
# Of the moment, of bytes, or of what is done with other queues.
_OTHERWISE = (
    *("statsAge", "statsAt", "stats_age", "timestamp", "timeRange", "storedBytes", "bytesAt"),
    *("lag_hours", "formatted", "lastUsedAt"),
)
_MUCH = {"batch": 100, "partitions": 10}
_SPARSE = [1000, 1000, 1_000_000, 1_000_000, 5_000_000, 120_000_000]


def about_as_late(now: Any, before: Any, what: str) -> None:
    """Compare answers; whatever is so many seconds old may have become a little older."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in _SECONDS & set(before) & set(now):
            if isinstance(before[key], int | float):
                grown = now[key] - before[key]
                assert 0 <= grown < _LATE_S, f"{what} > {key}: {now[key]} after {before[key]}"
                now, before = {**now, key: 0}, {**before, key: 0}
        assert set(now) == set(before), f"{what}: {set(now) ^ set(before)}"
        for key in before:
            about_as_late(now[key], before[key], f"{what} > {key}")
    elif isinstance(before, list) and isinstance(now, list):
        assert len(now) == len(before), f"{what}: {len(now)} and not {len(before)}"
        for at, (ours, theirs) in enumerate(zip(now, before, strict=True)):
            about_as_late(ours, theirs, f"{what} > [{at}]")
    else:
        same(now, before, what)


def get(api: Api, path: str) -> Any:
    answer = api.call("GET", f"/api/v1/{path}")
    assert answer.status == 200, answer.raw
    return without(answer.json, *_OTHERWISE)


async def test_a_seek_to_any_time_lands_at_the_same_messages(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    times = [text_of(at) for at in history.boundaries(rng, 15)]
    names = list(history.partitions)
    api.pop(history.queue, consumerGroup="g")
    moved(api, "g", history.queue, toBeginning=True)

    def check(when: str) -> list[Any]:
        answers: list[Any] = []
        for at in rng.sample(times, len(times)):
            told = moved(api, "g", history.queue, timestamp=at)
            stands = detail(api, "g", history.queue)
            for name in names:
                at_us = microseconds(datetime.fromisoformat(at))
                wanted = [one.created_at_us < at_us for one in history.of(name)].count(True)
                found = stands[name]["position"]
                assert found == wanted, f"{when}: {name} at {at} is {found} and not {wanted}"
            answers.append(without(told, "epoch"))
            alone = moved(api, "g", history.queue, rng.choice(names), timestamp=at)
            answers.append(without(alone, "epoch"))
            dry = seek(api, "g", history.queue, timestamp=rng.choice(times), dryRun=True)
            assert dry.status == 200, dry.raw
            answers.append(without(dry.json, "epoch"))
        for name in names:
            for _ in range(6):
                offset = rng.randrange(len(history.of(name)) + 1)
                told = moved(api, "g", history.queue, name, offset=offset)
                answers.append(without(told, "epoch", "cursorMovedTo" if not offset else ""))
        return answers

    state = rng.getstate()
    before = check("before")
    await merge(history.queue)
    moved(api, "g", history.queue, toBeginning=True)
    rng.setstate(state)
    moved(api, "g", history.queue, toBeginning=True)
    now = check("after")
    same(now[3:], before[3:], "what seeks say")


async def test_groups_are_as_late_as_before(
    api: Api, history: History, merge: Merge, rng: random.Random
) -> None:
    """Lag, counts and oldest messages, for groups that stand anywhere."""
    queue = history.queue
    for number in range(6):
        group = f"{queue} {number}"
        api.pop(queue, consumerGroup=group)
        moved(api, group, queue, toBeginning=True)
        for name in history.partitions:
            offset = rng.randrange(len(history.of(name)) + 1)
            moved(api, group, queue, name, offset=offset)

    def answers() -> dict[str, Any]:
        refresh(api)
        found: dict[str, Any] = {
            path: get(api, path)
            for path in (
                f"resources/queues/{queue}",
                f"status/queues/{queue}",
                f"status/queues/{queue}/messages?limit=300",
                f"resources/partitions?queue={queue}",
            )
        }
        for path in ("consumer-groups/lagging?minLagSeconds=1", "status/problems"):
            rows = get(api, path)
            rows = rows["stuck"] if isinstance(rows, dict) else rows
            found[path] = [
                row for row in rows if queue in (row.get("queue"), row.get("queue_name"))
            ]
        for number in range(6):
            group = f"{queue} {number}"
            found[group] = get(api, f"consumer-groups/{quote(group)}?queue={queue}")
        found["entries"] = without(entries(api, queue), *_OTHERWISE)
        return found

    before = answers()
    for number in range(6):
        for row in before[f"{queue} {number}"][queue]["partitions"]:
            messages = history.of(row["partition"])
            if row["offsetLag"]:
                at = instant_at(messages[row["position"]].created_at_us)
                late = (datetime.now(UTC) - at).total_seconds()
                assert abs(row["timeLagSeconds"] - late) < _LATE_S
    await merge(queue)
    about_as_late(answers(), before, "how late they are")


async def test_what_is_older_than_some_seconds_is_counted(
    api: Api, write: Write, merge: Merge, rng: random.Random
) -> None:
    history = await write(gaps_us=_SPARSE)
    cases = quiet_instants(history)
    rng.shuffle(cases)
    for when in ("before", "after"):
        for at in cases[:8]:
            seconds = int((datetime.now(UTC) - at).total_seconds())
            found = get(api, f"resources/queues/{history.queue}/older?seconds={seconds}")
            wanted = [one.created_at_us < microseconds(at) for one in history.messages()]
            assert found["messages"] == wanted.count(True), (when, at)
        if when == "before":
            await merge(history.queue)


def quiet_instants(history: History) -> list[datetime]:
    """Return instants with nothing for a minute on both sides, so that a test may take as long."""
    times = sorted({one.at for one in history.stored})
    return [a + (b - a) / 2 for a, b in pairwise(times) if b - a > timedelta(seconds=115)]


@pytest.mark.parametrize("shared", ["false", "true"], ids=["ordered", "shared"])
async def test_what_is_not_due_yet_is_not_handed_out(
    api: Api, write: Write, merge: Merge, shared: str
) -> None:
    history = await write(gaps_us=_SPARSE, large=0)
    cases = quiet_instants(history)[::6]
    assert cases
    for when in ("before", "after"):
        for number, at in enumerate(cases):
            seconds = int((datetime.now(UTC) - at).total_seconds())
            api.configure(history.queue, delayedProcessing=seconds)
            group = f"{when} {number}"
            query: dict[str, Any] = {"consumerGroup": group, "shared": shared, **_MUCH}
            found = []
            while page := api.messages(history.queue, **query):
                found += page
                assert api.ack_batch(page, group=group).status == 200
            found.sort(key=lambda one: (one["partitionId"], one["id"]))
            compare(found, older_than(history, group, at), f"{group}: {at}")
        if when == "before":
            await merge(history.queue)


def older_than(history: History, group: str, at: datetime) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, messages in history.shown(group).items():
        due = [one for one in messages if one.created_at_us < microseconds(at)]
        if due:
            found[name] = expected(due)
    return found


async def test_what_comes_due_later_is_handed_out_in_time(
    api: Api, write: Write, merge: Merge
) -> None:
    """A pop waits for messages that are in the midst of what is merged."""
    delay_s = 5
    history = await write(
        partitions=1, stretches=16, gaps_us=[150_000], large=0, rest=timedelta(0), lists=0
    )
    api.configure(history.queue, delayedProcessing=delay_s)
    await merge(history.queue)
    found: list[dict[str, Any]] = []
    wanted = shown(history, "g")
    count = sum(map(len, wanted.values()))
    query: dict[str, Any] = {"consumerGroup": "g", "batch": 100, "wait": "true", "timeout": 10_000}
    while len(found) < count and (page := api.messages(history.queue, **query)):
        now = datetime.now(UTC)
        for one in page:
            due = datetime.fromisoformat(one["createdAt"]) + timedelta(seconds=delay_s)
            assert due <= now + timedelta(milliseconds=20), f"{due - now} too early"
            assert now - due < timedelta(seconds=4), f"{now - due} late"
        found += page
        api.ack_batch(page, group="g")
    compare(found, wanted, "what came due")


@pytest.mark.parametrize("option", ["ttl", "maxWaitTimeSeconds"])
@pytest.mark.parametrize("shared", ["false", "true"], ids=["ordered", "shared"])
async def test_what_is_of_no_use_any_more_is_passed_over(
    api: Api, write: Write, merge: Merge, option: str, shared: str
) -> None:
    history = await write(gaps_us=_SPARSE, large=0)
    cases = quiet_instants(history)[1::6]
    assert cases
    for when in ("before", "after"):
        # What has expired is removed: the oldest first.
        for number, at in enumerate(cases if when == "after" else cases[:1]):
            seconds = int((datetime.now(UTC) - at).total_seconds())
            api.configure(history.queue, **{option: seconds})
            group = f"{when} {number}"
            query: dict[str, Any] = {"consumerGroup": group, "shared": shared, **_MUCH}
            found = []
            while page := api.messages(history.queue, **query):
                found += page
                assert api.ack_batch(page, group=group).status == 200
            found.sort(key=lambda one: (one["partitionId"], one["id"]))
            compare(found, shown(history, group, microseconds(at)), f"{group}: {at}")
        if when == "before":
            api.configure(history.queue)
            await merge(history.queue)


async def test_a_buffered_partition_is_handed_out_when_it_is_quiet(
    api: Api, write: Write, merge: Merge
) -> None:
    history = await write(gaps_us=[60_000_000, 1000], partitions=8, stretches=40, large=0)
    lasts = sorted(
        max(one.created_at_us for one in history.of(name)) for name in history.partitions
    )
    gaps = [(b - a, a + (b - a) // 2) for a, b in pairwise(lasts) if b - a > 50_000_000]
    assert gaps
    for when in ("before", "after"):
        for number, (_, at_us) in enumerate(gaps[:2]):
            seconds = int((datetime.now(UTC) - instant_at(at_us)).total_seconds())
            api.configure(history.queue, windowBuffer=seconds)
            group = f"{when} {number}"
            found = []
            while page := api.messages(
                history.queue, consumerGroup=group, batch=100, partitions=10, autoAck="true"
            ):
                found += page
            wanted = {
                name: messages
                for name, messages in shown(history, group).items()
                if max(one.created_at_us for one in history.of(name)) < at_us
            }
            compare(found, wanted, f"{group}: {text_of(at_us)}")
        if when == "before":
            await merge(history.queue)

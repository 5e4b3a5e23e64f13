"""Groups: each reads everything by itself, from where it subscribed."""

from __future__ import annotations

from datetime import UTC, datetime

import asyncpg
import pytest

from tests.api import Api
from tests.contract.conftest import Park, age
from tests.contract.groupcalls import entries
from tests.waiting import until


def test_groups_do_not_see_each_other(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(3)])
    assert api.data(queue, batch=10, consumerGroup="a") == [0, 1, 2]
    assert api.data(queue, batch=2, consumerGroup="b") == [0, 1]
    assert api.data(queue, batch=10) == [0, 1, 2]
    assert api.pop(queue, batch=10, consumerGroup="a").status == 204


def test_an_ack_moves_its_own_group_only(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(2)])
    api.ack_batch(api.messages(queue, batch=2, consumerGroup="a"), group="a")
    assert api.data(queue, batch=2, consumerGroup="b") == [0, 1]
    api.push({"queue": queue, "payload": 2})
    assert api.data(queue, batch=2, consumerGroup="a") == [2]


@pytest.mark.parametrize(
    "how",
    [
        {"subscriptionMode": "new"},
        {"subscriptionMode": "new-only"},
        {"subscriptionFrom": "now"},
        {"subscriptionMode": "all", "subscriptionFrom": "now"},
    ],
)
def test_a_group_for_new_messages_skips_history(api: Api, queue: str, how: dict[str, str]) -> None:
    api.push(*[{"queue": queue, "partition": p, "payload": "old"} for p in ("a", "b")])
    assert api.pop(queue, batch=10, consumerGroup="g", **how).status == 204
    # In partitions with a history, and in those that are made later.
    for partition in ("a", "c"):
        api.push({"queue": queue, "partition": partition, "payload": "new"})
        assert api.data(queue, batch=10, consumerGroup="g", **how) == ["new"]


@pytest.mark.parametrize("mode", ["", "all", "from_beginning", "earliest"])
def test_a_group_for_everything_starts_at_the_beginning(api: Api, queue: str, mode: str) -> None:
    api.push({"queue": queue, "payload": "old"})
    assert api.data(queue, consumerGroup="g", subscriptionMode=mode) == ["old"]


def test_the_default_group_reads_everything_whatever_the_mode(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": "old"})
    assert api.data(queue, subscriptionMode="new") == ["old"]


def test_the_first_subscription_stays(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": "old"})
    assert api.pop(queue, consumerGroup="g", subscriptionMode="new").status == 204
    assert api.pop(queue, consumerGroup="g", subscriptionMode="all").status == 204
    api.push({"queue": queue, "payload": "new"})
    assert api.data(queue, batch=9, consumerGroup="g", subscriptionMode="all") == ["new"]


def test_the_first_subscription_stays_on_another_server(
    api: Api, other_api: Api, queue: str
) -> None:
    api.push({"queue": queue, "payload": "old"})
    assert api.pop(queue, consumerGroup="g", subscriptionMode="new").status == 204
    assert other_api.pop(queue, consumerGroup="g").status == 204


async def test_a_group_can_start_at_a_time(
    api: Api, queue: str, connection: asyncpg.Connection
) -> None:
    for payload in ("oldest", "older"):
        api.push({"queue": queue, "payload": payload})
        await age(connection, queue, 3600)
    api.push({"queue": queue, "payload": "fresh"})
    at = datetime.fromtimestamp(datetime.now(UTC).timestamp() - 5400, UTC)
    for text in (
        at.isoformat(),
        at.isoformat().replace("+00:00", "Z"),
        at.replace(tzinfo=None).isoformat(timespec="milliseconds"),
    ):
        got = api.data(queue, batch=10, consumerGroup=f"g {text}", subscriptionFrom=text)
        assert got == ["older", "fresh"], text


async def test_a_start_exactly_at_a_message_includes_it(api: Api, queue: str) -> None:
    for payload in ("one", "two"):
        api.push({"queue": queue, "payload": payload})
    at = api.messages(queue, batch=2)[1]["createdAt"]
    assert api.data(queue, batch=2, consumerGroup="g", subscriptionFrom=at) == ["two"]


def test_a_start_in_the_future_waits_for_it(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    start = "2100-01-01T00:00:00Z"
    assert api.pop(queue, consumerGroup="g", subscriptionFrom=start).status == 204


@pytest.mark.parametrize(
    "how",
    [
        {"subscriptionFrom": "yesterday"},
        {"subscriptionFrom": "2026-13-01T00:00:00Z"},
        {"subscriptionFrom": "1700000000000"},
        {"subscriptionFrom": "0001-01-01T00:00:00+14:00"},
        {"subscriptionFrom": "9999-12-31T23:59:59-14:00"},
        {"subscriptionMode": "sometimes"},
    ],
)
def test_a_subscription_that_is_not_understood_is_refused(
    api: Api, queue: str, how: dict[str, str]
) -> None:
    api.push_many(queue, 1)
    answer = api.pop(queue, consumerGroup="g", **how)
    assert answer.status == 400
    assert next(iter(how)) in answer.json["error"]
    # The group was not registered by it.
    assert len(api.messages(queue, consumerGroup="g")) == 1


def test_subscriptions_work_with_waiting_too(api: Api, queue: str, park: Park) -> None:
    api.push({"queue": queue, "payload": "old"})
    poll = park(api, queue, batch=10, consumerGroup="g", subscriptionMode="new")
    # What is new is what comes after the group has been registered.
    until(lambda: "g" in entries(api, queue))
    api.push({"queue": queue, "payload": "new"})
    assert poll.data() == ["new"]


def test_who_waits_for_new_messages_before_the_queue_exists_gets_the_first(
    api: Api, other_api: Api, queue: str, park: Park
) -> None:
    polls = [
        park(one, queue, consumerGroup=f"g{number}", subscriptionMode="new", timeout=20_000)
        for number, one in enumerate((api, other_api))
    ]
    api.push({"queue": queue, "payload": "first"})
    assert [poll.data() for poll in polls] == [["first"], ["first"]]


def test_an_ack_does_not_subscribe_its_group(api: Api, queue: str) -> None:
    api.push({"queue": queue, "payload": "old"})
    (message,) = api.messages(queue)
    assert api.ack(message, consumerGroup="g").status == 409
    assert api.pop(queue, consumerGroup="g", subscriptionMode="new").status == 204

"""Pop: what is delivered, in which order, and to whom."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import quote, urlencode

import pytest

from tests.api import Api, pop_path


def test_the_answer_has_the_keys_of_both_revisions(api: Api, queue: str) -> None:
    pushed = api.push({"queue": queue, "partition": "p", "payload": {"a": 1}}).json[0]
    answer = api.pop(queue, batch=5, consumerGroup="g")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json
    (message,) = body["messages"]
    assert body["success"] is True
    assert body["queue"] == message["queue"] == queue
    assert body["partition"] == message["partition"] == "p"
    assert body["partitionId"] == message["partitionId"] == pushed["partition_id"]
    assert body["leaseId"] == message["leaseId"] != ""
    assert body["consumerGroup"] == message["consumerGroup"] == "g"
    assert body["partitionsClaimed"] == 1
    assert message["id"] == pushed["message_id"]
    assert message["transactionId"] == pushed["transaction_id"]
    assert message["data"] == {"a": 1}
    assert message["retryCount"] == 0
    assert message["priority"] == 0
    assert message["traceId"] is message["producerSub"] is None
    assert message["createdAt"].endswith("Z")
    assert datetime.fromisoformat(message["createdAt"]).tzinfo is not None


def test_the_default_group_is_named_in_the_answer_and_null_in_its_messages(
    api: Api, queue: str
) -> None:
    api.push_many(queue, 1)
    body = api.pop(queue).json
    assert body["consumerGroup"] == "__QUEUE_MODE__"
    assert body["messages"][0]["consumerGroup"] is None


def test_the_default_group_can_be_named(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    assert len(api.messages(queue)) == 1
    assert api.pop(queue, consumerGroup="__QUEUE_MODE__").status == 204


def test_the_priority_of_the_queue_is_shown(api: Api, queue: str) -> None:
    api.configure(queue, priority=7)
    api.push_many(queue, 1)
    assert api.messages(queue)[0]["priority"] == 7


def test_nothing_is_a_204_without_a_body(api: Api, queue: str) -> None:
    answer = api.pop(queue)
    assert (answer.status, answer.raw) == (204, b"")
    api.configure(queue)
    assert api.pop(queue).status == 204
    assert api.pop(queue, "nowhere").status == 204


def test_messages_of_a_partition_come_in_order(api: Api, queue: str) -> None:
    for start in range(0, 60, 3):
        api.push(*[{"queue": queue, "payload": n} for n in range(start, start + 3)])
    got: list[int] = []
    while batch := api.messages(queue, batch=7):
        got += [one["data"] for one in batch]
        api.ack_batch(batch)
    assert got == list(range(60))


def test_a_pop_without_a_batch_takes_one(api: Api, queue: str) -> None:
    api.push_many(queue, 3)
    assert len(api.messages(queue)) == 1


@pytest.mark.parametrize(("batch", "expected"), [(1, 1), (3, 3), (5, 5), (6, 5), (10_000, 5)])
def test_a_batch_holds_at_most_what_was_asked(
    api: Api, queue: str, batch: int, expected: int
) -> None:
    api.push_many(queue, 5)
    assert len(api.messages(queue, batch=batch)) == expected


def test_a_partition_can_be_asked_for_by_name(api: Api, queue: str) -> None:
    for name in ("a", "b", "c"):
        api.push({"queue": queue, "partition": name, "payload": name})
    assert api.data(queue, "b", batch=10) == ["b"]
    assert api.pop(queue, "b").status == 204
    assert sorted(api.data(queue, batch=10, partitions=10)) == ["a", "c"]


def test_without_partitions_an_answer_comes_from_one_partition(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n % 4}", "payload": n} for n in range(40)])
    messages = api.messages(queue, batch=100)
    assert len(messages) == 10
    assert len({one["partitionId"] for one in messages}) == 1


def test_a_wildcard_pop_takes_up_to_n_partitions(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n % 10}", "payload": n} for n in range(100)])
    body = api.pop(queue, batch=1000, partitions=4).json
    names = {one["partition"] for one in body["messages"]}
    assert body["partitionsClaimed"] == len(names) == 4
    assert len(body["messages"]) == 40
    assert {one["leaseId"] for one in body["messages"]} == {body["leaseId"]}
    for name in names:
        mine = [one["data"] for one in body["messages"] if one["partition"] == name]
        assert mine == sorted(mine)
    assert len(api.messages(queue, batch=1000, partitions=1000)) == 60


def test_batch_is_a_cap_over_all_partitions_together(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n % 10}", "payload": n} for n in range(100)])
    first = api.messages(queue, batch=25, partitions=10)
    assert len(first) == 25
    second = api.messages(queue, batch=1000, partitions=10)
    # What the cap held back is still there; what was leased is not.
    assert not {one["partition"] for one in first} & {one["partition"] for one in second}
    assert len(second) == 70


def test_a_queue_of_many_partitions_is_drained(api: Api, queue: str) -> None:
    items = [{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(1500)]
    assert api.push(*items).status == 201
    got: list[int] = []
    while batch := api.messages(queue, batch=400, partitions=1000):
        got += [one["data"] for one in batch]
        assert all(one["success"] for one in api.ack_batch(batch).json["results"])
    assert sorted(got) == list(range(1500))


def test_partitions_is_ignored_when_a_partition_is_named(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n}", "payload": n} for n in range(3)])
    assert api.data(queue, "p1", partitions=3, batch=10) == [1]


# ---- by namespace and task ----


def by_label(api: Api, **query: object) -> list[object]:
    return [one["data"] for one in api.call("GET", f"/api/v1/pop?{urlencode(query)}").messages]


def test_a_pop_by_namespace_and_task_reads_matching_queues_only(api: Api, queue: str) -> None:
    for task in ("ship", "bill"):
        api.push({"queue": f"{queue}.{task}.x", "payload": task})
    assert by_label(api, namespace=queue, task="none") == []
    assert by_label(api, namespace=queue, task="bill", batch=10) == ["bill"]
    assert by_label(api, namespace=queue, task="bill") == []
    assert by_label(api, namespace=queue) == ["ship"]
    assert by_label(api, namespace=queue) == []


def test_a_pop_by_task_alone_reads_every_namespace(api: Api, queue: str) -> None:
    for number in range(3):
        api.push({"queue": f"{number}.{queue}.x", "payload": number})
    got = [one for _ in range(3) for one in by_label(api, task=queue, batch=10)]
    assert sorted(got, key=str) == [0, 1, 2]


def test_labels_are_those_of_the_configuration(api: Api, queue: str) -> None:
    body = {"queue": queue, "namespace": f"ns {queue}", "task": "t", "options": None}
    assert api.call("POST", "/api/v1/configure", body).status == 201
    api.push({"queue": queue, "payload": 1})
    assert by_label(api, namespace=queue) == []
    assert by_label(api, namespace=f"ns {queue}", task="t") == [1]


def test_no_partition_starves_in_a_pop_by_namespace(api: Api, queue: str) -> None:
    for number in range(12):
        api.push({"queue": f"{queue}.t{number}", "payload": number})
        assert by_label(api, namespace=queue, autoAck="true") == [number]
    api.push({"queue": f"{queue}.t12", "payload": 12})
    assert by_label(api, namespace=queue) == [12]


# ---- autoAck ----


def test_auto_ack_delivers_each_message_once(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "payload": n} for n in range(5)])
    body = api.pop(queue, batch=3, autoAck="true").json
    assert [one["data"] for one in body["messages"]] == [0, 1, 2]
    assert body["leaseId"] == body["messages"][0]["leaseId"] == ""
    assert api.data(queue, batch=3, autoAck="true") == [3, 4]
    assert api.pop(queue).status == 204


def test_auto_ack_over_several_partitions_loses_nothing(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": f"p{n % 6}", "payload": n} for n in range(60)])
    got: list[int] = []
    while batch := api.data(queue, batch=7, partitions=3, autoAck="true"):
        got += batch
    assert sorted(got) == list(range(60))


@pytest.mark.parametrize("text", ["false", "0", "", "no"])
def test_auto_ack_is_off_for_anything_but_true_and_1(api: Api, queue: str, text: str) -> None:
    api.push_many(queue, 1)
    assert api.messages(queue, autoAck=text)[0]["leaseId"]


# ---- leases between consumers ----


def test_a_leased_partition_is_not_served_to_its_group_again(api: Api, queue: str) -> None:
    api.push_many(queue, 4)
    assert len(api.messages(queue, batch=2)) == 2
    assert api.pop(queue, batch=2).status == 204
    assert api.pop(queue, "Default", batch=2).status == 204
    assert api.pop(queue, batch=2, autoAck="true").status == 204


def test_a_leased_partition_does_not_hide_the_others(api: Api, queue: str) -> None:
    api.push(*[{"queue": queue, "partition": p, "payload": p} for p in ("a", "b")])
    got = api.data(queue) + api.data(queue)
    assert sorted(got) == ["a", "b"]
    assert api.pop(queue).status == 204


def test_a_group_is_told_of_what_comes_behind_its_lease_after_the_ack(api: Api, queue: str) -> None:
    api.push_many(queue, 1)
    leased = api.messages(queue)
    api.push({"queue": queue, "payload": "later"})
    assert api.pop(queue).status == 204
    api.ack_batch(leased)
    assert api.data(queue) == ["later"]


# ---- names in URLs ----

NAMES = [
    "with space",
    "with/slash",
    "per%cent",
    "per%20cent",
    "ünïcödé 日本 😀",
    "plus+sign",
    "question?mark&amp=1#hash",
    "semi;colon:dot.dot",
    "..",
    "'quote\"",
    "back\\slash",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_decoded_in_the_path(api: Api, queue: str, name: str) -> None:
    full = f"{queue} {name}"
    pushed = api.push({"queue": full, "partition": name, "payload": 1}).json[0]
    assert pushed["queueName"] == full
    (message,) = api.messages(full, name)
    assert (message["queue"], message["partition"]) == (full, name)
    assert len(api.messages(full, consumerGroup="g")) == 1
    assert api.delete_queue(full).json == {"deleted": True, "queue": full, "existed": True}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_decoded_in_the_query(api: Api, queue: str, name: str) -> None:
    api.push_many(queue, 1)
    (message,) = api.messages(queue, consumerGroup=name)
    assert message["consumerGroup"] == name
    # %20 and + are both a space.
    path = f"/api/v1/pop/queue/{queue}?consumerGroup={quote(name, safe='')}"
    assert api.call("GET", path).status == 204
    assert api.ack(message).json["consumerGroup"] == name


def test_a_path_that_is_not_utf8_is_refused(api: Api) -> None:
    answer = api.call("GET", "/api/v1/pop/queue/%ff")
    assert answer.status == 400
    assert "UTF-8" in answer.json["error"]


@pytest.mark.parametrize("value", ["true", "1"])
def test_conflation_is_refused_before_anything_is_leased(api: Api, queue: str, value: str) -> None:
    api.push_many(queue, 3, "p")
    for path in (
        pop_path(queue, conflation=value),
        pop_path(queue, "p", conflation=value),
        f"/api/v1/pop?namespace={queue}&conflation={value}",
    ):
        answer = api.call("GET", path)
        assert (answer.status, answer.json["code"]) == (400, "bad_request")
        assert "conflation" in answer.json["error"]
    assert api.data(queue, batch=10, conflation="false") == [{"n": n} for n in range(3)]

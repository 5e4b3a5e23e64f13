"""Streams over HTTP: windows are cut, leased, acknowledged, given up and explained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api import Answer, Api


class Streams:
    """The verbs of streams, as a test says them."""

    def __init__(self, api: Api, prefix: str) -> None:
        self.api = api
        self.prefix = prefix

    def define(self, name: str = "s", *sources: str, status: int = 201, **more: Any) -> Any:
        body = {
            "name": self.prefix + name,
            "namespace": "",
            "source_queue_names": [self.prefix + source for source in sources or ("q",)],
            "window_duration_ms": 500,
            "window_grace_period_ms": 0,
            **more,
        }
        answer = self.api.call("POST", "/api/v1/stream/define", body)
        assert answer.status == status, answer.json
        return answer.json

    def push(self, queue: str, *payloads: Any, partition: str = "Default") -> None:
        items = [
            {"queue": self.prefix + queue, "partition": partition, "payload": payload}
            for payload in payloads
        ]
        assert self.api.push(*items).status == 201

    def poll(self, name: str = "s", group: str = "g", timeout: int = 20_000, **more: Any) -> Any:
        body = {"streamName": self.prefix + name, "consumerGroup": group, "timeout": timeout}
        answer = self.api.call("POST", "/api/v1/stream/poll", {**body, **more})
        assert answer.status in (200, 204), answer.json
        return answer.json["window"] if answer.status == 200 else None

    def ack(self, window: Any, **more: Any) -> Answer:
        body = {"windowId": window["id"], "leaseId": window["leaseId"], **more}
        return self.api.call("POST", "/api/v1/stream/ack", body)

    def seek(self, at: str, name: str = "s", group: str = "g") -> None:
        body = {"streamName": self.prefix + name, "consumerGroup": group, "timestamp": at}
        assert self.api.call("POST", "/api/v1/stream/seek", body).status == 200

    def get(self, path: str = "", name: str = "s") -> Any:
        answer = self.api.call("GET", f"/api/v1/resources/streams/{self.prefix}{name}{path}")
        assert answer.status == 200, answer.json
        return answer.json

    def drain(self, count: int, name: str = "s", group: str = "g") -> list[Any]:
        """Take and acknowledge windows until so many messages have come."""
        found: list[Any] = []
        while sum(len(window["messages"]) for window in found) < count:
            window = self.poll(name, group)
            assert window is not None, "no further window came"
            assert self.ack(window).status == 200
            found.append(window)
        return found


@pytest.fixture
def streams(api: Api, queue: str) -> Iterator[Streams]:
    made = Streams(api, f"{queue}-")
    yield made
    # Streams with short windows keep the planner of the shared server busy.
    for name in ("s", "wide", "all"):
        api.call("DELETE", f"/api/v1/resources/streams/{made.prefix}{name}")


def values(window: Any) -> list[Any]:
    return [message["data"] for message in window["messages"]]


def test_a_window_holds_what_was_written_in_its_time(streams: Streams) -> None:
    streams.define()
    streams.push("q", 1, 2, 3)
    window = streams.poll()
    assert values(window) == [1, 2, 3]
    assert window["key"] == "__GLOBAL__"
    assert window["count"] == 3 and window["attempt"] == 1 and window["lost"] == 0
    message = window["messages"][0]
    assert window["start"] <= message["created_at"] < window["end"]
    assert message["queue"] == streams.prefix + "q" and message["offset"] == 0
    assert window["id"].endswith(f":__GLOBAL__:{window['start']}:{window['end']}")
    assert streams.ack(window).json == {"success": True, "acked": True, "pushed": []}
    assert streams.poll(timeout=0) is None


def test_the_same_partition_name_in_two_queues_is_one_key(streams: Streams) -> None:
    streams.define("s", "a", "b", partitioned=True)
    streams.push("b", "alone", partition="k")
    for number in range(10):
        streams.push("a", ["a", number], partition=f"k{number}")
        streams.push("b", ["b", number], partition=f"k{number}")
    found = [(window["key"], sorted(values(window))) for window in streams.drain(21)]
    assert ("k", ["alone"]) in found
    # A boundary may lie between two pushes, but not between all of them.
    whole = {f"k{number}": [["a", number], ["b", number]] for number in range(10)}
    assert any(whole.get(key) == held for key, held in found)
    assert all(one in whole[key] for key, held in found if key != "k" for one in held)


def test_a_window_is_given_back_without_fault(streams: Streams) -> None:
    streams.define(retry_limit=0, retry_delay_ms=60_000)
    streams.push("q", 1)
    for _ in range(3):
        window = streams.poll()
        assert window["attempt"] == 1
        assert streams.ack(window, release=True).status == 400
        given_back = streams.ack(window, success=False, release=True)
        assert (given_back.status, given_back.json["acked"]) == (200, False)
        assert streams.ack(window, success=False, release=True).status == 409
        assert streams.ack(window).status == 409
    assert streams.ack(streams.poll()).status == 200
    assert streams.poll(timeout=0) is None


def test_a_repeated_ack_is_answered_and_a_stale_one_refused(streams: Streams) -> None:
    streams.define(window_lease_timeout_ms=2000)
    streams.push("q", 1)
    window = streams.poll()
    assert streams.ack(window).status == 200
    assert streams.ack(window).status == 200
    streams.push("q", 2)
    first = streams.poll()
    second = streams.poll()
    assert values(second) == values(first) == [2] and second["attempt"] == 2
    assert second["id"] == first["id"] and second["leaseId"] != first["leaseId"]
    assert streams.ack(first).status == 409
    assert streams.ack(second).status == 200


def test_a_failing_window_is_retried_set_aside_and_can_be_retried(streams: Streams) -> None:
    streams.define(retry_limit=1, retry_delay_ms=1)
    streams.push("q", "bad")
    for _ in range(2):
        window = streams.poll()
        assert streams.ack(window, success=False, error="no good").json["acked"] is False
    assert streams.poll(timeout=300) is None
    dead = streams.get("/dead?group=g")
    assert dead["total"] == 1
    (letter,) = dead["windows"]
    assert letter["error"] == "no good" and letter["attempts"] == 2
    assert letter["id"] == window["id"] and letter["ranges"] == window["ranges"]
    body = {"consumerGroup": "g", "windowId": letter["id"]}
    path = f"/api/v1/resources/streams/{streams.prefix}s/dead/retry"
    assert streams.api.call("POST", path, body).json == {"retried": 1}
    again = streams.poll()
    assert values(again) == ["bad"] and again["attempt"] == 1
    assert streams.ack(again).status == 200


def test_a_lease_does_not_change_its_mind(streams: Streams) -> None:
    streams.define(retry_delay_ms=1)
    streams.push("q", 1)
    window = streams.poll()
    assert streams.ack(window, success=False).status == 200
    assert streams.ack(window, success=False).status == 200
    assert streams.ack(window).status == 409
    again = streams.poll()
    assert streams.ack(again).status == 200
    assert streams.ack(again, success=False).status == 409


def test_results_are_pushed_with_the_ack_or_not_at_all(streams: Streams) -> None:
    streams.define(window_lease_timeout_ms=2000)
    streams.push("q", 1)
    stale = streams.poll()
    window = streams.poll()
    result = {"queue": streams.prefix + "out", "payload": {"sum": 1}}
    assert streams.ack(stale, push=[result]).status == 409
    assert streams.ack(window, push=[result]).json["pushed"][0]["status"] == "queued"
    assert streams.ack(window, push=[result]).json["pushed"] == []
    out = streams.api.call("GET", f"/api/v1/pop/queue/{streams.prefix}out?batch=10")
    assert [message["data"] for message in out.json["messages"]] == [{"sum": 1}]


def test_sliding_windows_overlap(streams: Streams) -> None:
    streams.define(window_type="sliding", window_duration_ms=600, window_slide_ms=200)
    streams.push("q", "x")
    found = []
    for _ in range(3):
        window = streams.poll()
        assert values(window) == ["x"]
        assert streams.ack(window).status == 200
        found.append((window["start"], window["end"]))
    assert len(set(found)) == 3 and sorted(found) == found
    assert streams.poll(timeout=700) is None


def test_count_windows_close_when_they_are_full(streams: Streams) -> None:
    streams.define(window_type="count", window_size_count=3, window_slide_count=2)
    streams.push("q", 1, 2, 3, 4)
    streams.push("q", 5, 6)
    first, second = streams.poll(), None
    assert values(first) == [1, 2, 3]
    assert streams.ack(first).status == 200
    second = streams.poll()
    assert values(second) == [3, 4, 5]
    assert streams.ack(second).status == 200
    assert streams.poll(timeout=1200) is None
    streams.push("q", 7)
    assert values(streams.poll()) == [5, 6, 7]


def test_a_session_ends_after_its_gap(streams: Streams) -> None:
    streams.define(window_type="session", window_gap_ms=2000, partitioned=True)
    streams.push("q", 1, partition="a")
    streams.push("q", 2, partition="a")
    streams.push("q", 9, partition="b")
    found = {window["key"]: values(window) for window in streams.drain(3)}
    assert found == {"a": [1, 2], "b": [9]}
    streams.push("q", 3, partition="a")
    assert values(streams.poll()) == [3]


def test_groups_are_independent_and_seek_is_exact(streams: Streams) -> None:
    streams.define(partitioned=True)
    for number in range(3):
        streams.push("q", number, partition="a")
        streams.push("q", number, partition="b")
        # What comes next is in later windows than what has been handed out.
        streams.drain(2, group="pace")
    windows = streams.drain(6)
    assert streams.drain(6, group="other")[0]["id"] == windows[0]["id"]
    starts = sorted({window["start"] for window in windows})
    later = [window for window in windows if window["start"] >= starts[1]]
    streams.seek(starts[1])
    again = streams.drain(sum(window["count"] for window in later))
    assert {window["id"] for window in again} == {window["id"] for window in later}
    streams.seek("beginning")
    held = streams.poll()
    streams.seek(starts[0])
    assert streams.ack(held).status == 409
    assert len(streams.drain(6)) == len(windows)


def test_order_per_key_and_several_in_flight(streams: Streams) -> None:
    streams.define(window_duration_ms=200)
    streams.define("wide", window_duration_ms=200, max_in_flight=2)
    for number in range(3):
        streams.push("q", number)
        streams.drain(1, group="pace")
    first = streams.poll()
    assert streams.poll(timeout=0) is None
    assert streams.ack(first).status == 200
    assert streams.poll()["start"] > first["start"]
    one, two = streams.poll("wide"), streams.poll("wide")
    assert (values(one), values(two)) == ([0], [1])
    assert streams.poll("wide", timeout=0) is None
    assert streams.ack(two).status == 200
    assert values(streams.poll("wide")) == [2]


def test_a_change_of_the_cut_is_refused_unless_it_is_meant(streams: Streams) -> None:
    streams.define()
    assert streams.define()["changed"] is False
    streams.push("q", 1)
    window = streams.poll()
    assert streams.ack(window).status == 200
    refused = streams.define("s", "q", "r", window_duration_ms=700, status=409)
    prefix = streams.prefix
    assert refused["differs"] == [
        "window_duration_ms: 500 -> 700",
        f'source_queue_names: ["{prefix}q"] -> ["{prefix}q","{prefix}r"]',
    ]
    assert streams.define(window_grace_period_ms=10)["changed"] is True
    streams.define("s", "q", "r", window_duration_ms=700, recut=True)
    streams.push("r", 2)
    # The window around the last message that was done is cut anew, so it may come once more.
    found: list[Any] = []
    while 2 not in found:
        found += values(streams.drain(1)[-1])
    assert set(found) <= {1, 2}
    assert streams.get()["sourceQueues"] == [prefix + "q", prefix + "r"]


def test_large_windows_are_fetched_page_by_page(streams: Streams) -> None:
    streams.define("s", "a", "b")
    streams.push("a", *range(50))
    streams.push("b", *range(50, 60), partition="p")
    found: list[Any] = []
    # One window, or two when a boundary lies between the pushes.
    while len(found) < 60:
        window = streams.poll(maxInlineBytes=0)
        assert window["messages"] == "ref"
        held = list(_pages(streams, window))
        assert len(held) == window["count"]
        found += held
        assert streams.ack(window).status == 200
        path = f"/api/v1/stream/messages?leaseId={window['leaseId']}"
        assert streams.api.call("GET", path).status == 409
    assert sorted(found) == list(range(60))


def _pages(streams: Streams, window: Any) -> Iterator[Any]:
    """The payloads of a window, a few with each request."""
    after: str | None = ""
    while after is not None:
        path = f"/api/v1/stream/messages?leaseId={window['leaseId']}&limit=7&after={after}"
        page = streams.api.call("GET", path).json
        assert len(page["messages"]) <= 7
        yield from values(page)
        after = page["next"]


def test_empty_windows_come_only_when_they_are_asked_for(streams: Streams) -> None:
    streams.define("s", window_duration_ms=300)
    streams.define("all", window_duration_ms=300, emit_empty=True)
    streams.push("q", 1)
    for _ in range(3):
        assert streams.ack(streams.poll("all", "pace")).status == 200
    streams.push("q", 2)
    full = streams.drain(2)
    assert [values(window) for window in full] == [[1], [2]]
    every = streams.drain(2, "all")
    assert len(every) >= 4
    ends = [window["end"] for window in every]
    assert all(window["start"] == end for window, end in zip(every[1:], ends, strict=False))


def test_lists_and_explanations(streams: Streams) -> None:
    streams.define(partitioned=True, window_duration_ms=300, window_lease_timeout_ms=60_000)
    streams.push("q", 1, partition="a")
    window = streams.poll(consumer="worker-1")
    streams.push("q", 2, partition="a")
    reasons: list[Any] = []
    while len(reasons) < 2:
        assert streams.poll(timeout=100) is None
        reasons = streams.get("/explain?group=g")["keys"]
    assert [(one["state"], one["why"]) for one in reasons] == [
        ("leased", "held by worker-1"),
        ("waiting", "waits until earlier windows of its key are done"),
    ]
    states = [one["state"] for one in streams.get("/windows?group=g")["windows"]]
    assert states == ["waiting", "leased"]
    assert streams.ack(window).status == 200
    (consumer,) = streams.get("/consumers")["consumers"]
    assert consumer["totalWindowsConsumed"] == 1 and consumer["waiting"] == 1
    assert streams.get()["consumerGroups"] == 1
    assert streams.api.call("GET", "/api/v1/resources/streams/stats").json["totalStreams"] >= 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"window_type": "sliding"}, "window_slide_ms is needed"),
        ({"window_type": "sliding", "window_slide_ms": 300}, "multiple"),
        ({"window_type": "session"}, "window_gap_ms is needed"),
        ({"window_type": "count"}, "window_size_count is needed"),
        ({"window_type": "hopping"}, "hopping"),
        ({"window_duration_ms": 0}, "windowDurationMs"),
        ({"source_queue_names": []}, "at least one"),
        ({"source_queue_names": ["a", "a"]}, "twice"),
    ],
)
def test_bad_definitions_are_named(streams: Streams, wrong: dict[str, Any], said: str) -> None:
    assert said in streams.define(status=400, **wrong)["error"]


def test_unknown_things(streams: Streams) -> None:
    call = streams.api.call
    body = {"streamName": "nothing", "consumerGroup": "g", "timeout": 0}
    assert call("POST", "/api/v1/stream/poll", body).status == 404
    assert call("POST", "/api/v1/stream/ack", {"leaseId": "x"}).status == 409
    lease = "00000007-0000-0000-002a-5f0c1d9e7a3b"
    assert call("POST", "/api/v1/stream/renew-lease", {"leaseId": lease}).status == 404
    assert call("GET", "/api/v1/resources/streams/nothing").status == 404

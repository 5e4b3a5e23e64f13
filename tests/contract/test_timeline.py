"""The timeline of a stream: the last windows of each key, and what a group has done about them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api import Api
from tests.contract.test_streams import Streams
from tests.waiting import until


@pytest.fixture
def streams(api: Api, queue: str) -> Streams:
    made = Streams(api, f"{queue}-")
    made.define(
        window_type="count",
        window_size_count=1,
        window_duration_ms=None,
        partitioned=True,
        retry_limit=0,
    )
    return made


def timeline(streams: Streams, **query: Any) -> Any:
    return streams.get(f"/timeline?{urlencode(query)}")


def states(answer: Any) -> dict[str, list[str]]:
    return {key["key"]: [window["state"] for window in key["windows"]] for key in answer["keys"]}


def test_keys_that_need_somebody_come_first(streams: Streams) -> None:
    for partition in ("done", "dead", "leased"):
        streams.push("q", 1, partition=partition)
    seen: set[str] = set()
    while len(seen) < 3:
        window = streams.poll(consumer="worker-1")
        seen.add(window["key"])
        if window["key"] == "done":
            assert streams.ack(window).status == 200
        elif window["key"] == "dead":
            assert streams.ack(window, success=False, error="<b>no</b>").status == 200
    answer = timeline(streams, group="g")
    assert states(answer) == {"dead": ["dead"], "leased": ["leased"], "done": ["done"]}
    (dead,), (leased,), (done,) = (key["windows"] for key in answer["keys"])
    assert (dead["error"], dead["attempts"]) == ("<b>no</b>", 1)
    assert (leased["consumer"], leased["attempts"]) == ("worker-1", 1)
    assert leased["leaseExpiresAt"] > leased["leasedAt"]
    assert done["settledAt"] >= done["leasedAt"]
    retry = {"consumerGroup": "g", "windowId": dead["id"]}
    path = f"/api/v1/resources/streams/{streams.prefix}s/dead/retry"
    assert streams.api.call("POST", path, retry).json == {"retried": 1}
    assert states(timeline(streams, group="g"))["dead"] == ["ready"]
    assert (answer["group"], answer["open"]) == ("g", [])


def test_without_a_group_windows_are_planned_and_one_key_can_be_asked_for(
    streams: Streams,
) -> None:
    for partition in ("a", "b"):
        streams.push("q", 1, 2, 3, partition=partition)
    until(lambda: states(timeline(streams)).keys() == {"a", "b"})
    until(lambda: len(states(timeline(streams, key="a"))["a"]) == 3)
    assert states(timeline(streams, key="a")) == {"a": ["planned"] * 3}
    assert states(timeline(streams, key="a", windows=2)) == {"a": ["planned"] * 2}
    assert len(states(timeline(streams, keys=1))) == 1
    starts = [window["start"] for window in timeline(streams, key="a")["keys"][0]["windows"]]
    assert starts == sorted(starts)


def test_a_window_of_time_that_is_open_says_when_it_is_handed_out(api: Api, queue: str) -> None:
    streams = Streams(api, f"{queue}-")
    streams.define(window_duration_ms=60_000, window_grace_period_ms=5_000)
    answer = timeline(streams)
    (window,) = answer["open"]
    assert window["start"] <= answer["now"] <= window["end"] < window["readyAt"]


def test_bad_questions_are_refused(streams: Streams) -> None:
    base = f"/api/v1/resources/streams/{streams.prefix}s/timeline"
    assert streams.api.call("GET", f"{base}?keys=0").status == 400
    assert streams.api.call("GET", f"{base}?windows=101").status == 400
    assert streams.api.call("GET", f"{base}?group=nobody").status == 404

"""Results of a window that many tasks staged, and where the messages of windows lie."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.api import Api
from tests.contract.sinkcalls import Sink, frame
from tests.contract.test_streams import Streams


@pytest.fixture
def streams(api: Api, queue: str) -> Streams:
    return Streams(api, f"{queue}-")


def counted(streams: Streams, *payloads: Any, **more: Any) -> None:
    """A stream whose windows are full after two messages, and something in it."""
    streams.define(window_type="count", window_size_count=2, window_duration_ms=None, **more)
    streams.push("q", *payloads)


def staged(api: Api, out: str, query: str) -> tuple[Sink, dict[str, Any]]:
    """What two tasks have staged, and how an ack names it."""
    sink = Sink(api, query)
    sink.open(once=True)
    sink.stage(frame(out, range(3)), task=0)
    sink.stage(frame(out, range(3, 5)), task=1, attempt=7)
    stages = [
        {"task": 0, "attempt": 0, "messages": 3},
        {"task": 1, "attempt": 7, "messages": 2},
    ]
    named = {"query": query, "run": sink.run, "epoch": sink.epoch, "batch": 0, "stages": stages}
    return sink, named


def stored(api: Api, queue: str) -> int:
    return sum(one.count for one in api.frames(queue, "p"))


def test_what_tasks_staged_is_published_with_the_ack_and_once(streams: Streams) -> None:
    counted(streams, 1, 2)
    window, out = streams.poll(), streams.prefix + "out"
    _, named = staged(streams.api, out, window["leaseId"])
    both = [{"queue": out, "payload": 1}]
    for wrong in ({"success": False}, {"push": both}):
        assert streams.ack(window, sink=named, **wrong).status == 400
    for _ in range(2):
        answer = streams.ack(window, sink=named)
        assert (answer.status, answer.json["acked"]) == (200, True)
        assert stored(streams.api, out) == 5
    assert streams.poll(timeout=0) is None


@pytest.mark.parametrize("more", [{}, {"transactionId": "t"}], ids=["without an id", "with an id"])
def test_results_are_pushed_once_where_no_ids_are_kept(
    streams: Streams, other_api: Api, more: dict[str, str]
) -> None:
    counted(streams, 1, 2)
    window, out = streams.poll(), streams.prefix + "out"
    streams.api.configure(out, dedup="off")
    results = [{"queue": out, "payload": "result", **more}]
    for api in (streams.api, streams.api, other_api):
        answer = Streams(api, streams.prefix).ack(window, push=results)
        assert (answer.status, answer.json["acked"]) == (200, True)
    assert streams.api.data(out, batch=10) == ["result"]


def test_nothing_is_published_when_the_lease_is_lost(streams: Streams) -> None:
    counted(streams, 1, 2)
    stale, out = streams.poll(), streams.prefix + "out"
    _, named = staged(streams.api, out, stale["leaseId"])
    assert streams.ack(stale, success=False, release=True).status == 200
    window = streams.poll()
    assert streams.ack(stale, sink=named).status == 409
    # The stages are still there: whoever has the lease may publish them.
    assert streams.ack(window, sink=named).status == 200
    assert stored(streams.api, out) == 5


def test_a_window_is_not_done_when_its_results_are_gone(streams: Streams) -> None:
    counted(streams, 1, 2)
    window, out = streams.poll(), streams.prefix + "out"
    sink, named = staged(streams.api, out, window["leaseId"])
    assert sink.abort((0, 3)).status == 200
    refused = streams.ack(window, sink=named)
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert streams.ack(window, sink={**named, "query": "nobody"}).status == 404
    # Only the ack was refused: the lease is as it was.
    assert streams.ack(window).status == 200


def test_results_that_were_published_before_do_not_stop_the_ack(streams: Streams) -> None:
    counted(streams, 1, 2)
    window, out = streams.poll(), streams.prefix + "out"
    sink, named = staged(streams.api, out, window["leaseId"])
    assert sink.commit((0, 3), (1, 2, 7)).json["status"] == "committed"
    assert streams.ack(window, sink=named).status == 200
    assert streams.poll(timeout=0) is None
    assert stored(streams.api, out) == 5


def test_a_lease_says_where_its_messages_lie(streams: Streams) -> None:
    counted(streams, 1, 2, 3, 4)
    window = streams.poll()
    path = "/api/v1/stream/window?leaseId="
    found = streams.api.call("GET", path + window["leaseId"])
    assert found.status == 200
    assert {name: window[name] for name in ("id", "key", "start", "end", "ranges", "bytes")} == {
        name: found.json[name] for name in ("id", "key", "start", "end", "ranges", "bytes")
    }
    assert streams.ack(window).status == 200
    assert streams.api.call("GET", path + window["leaseId"]).status == 409
    assert streams.api.call("GET", path).status == 400


def ranges(streams: Streams, **query: Any) -> Any:
    return streams.get(f"/ranges?{urlencode(query)}")


def test_closed_windows_are_listed_in_order_and_in_pages(streams: Streams) -> None:
    counted(streams, *range(10))
    first = streams.poll()
    page = ranges(streams, limit=2)
    listed = page["windows"]
    while page["next"]:
        page = ranges(streams, limit=2, after=page["next"])
        listed += page["windows"]
    places = [(one["ranges"][0]["from"], one["ranges"][0]["to"]) for one in listed]
    assert places == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert listed[0]["id"] == first["id"]
    end = listed[1]["end"]
    assert ranges(streams, toTime=end)["windows"] == [one for one in listed if one["end"] <= end]
    assert ranges(streams, fromTime=end)["windows"] == [
        one for one in listed if one["start"] >= end
    ]
    assert streams.api.call(
        "GET", f"/api/v1/resources/streams/{streams.prefix}s/ranges?after=x"
    ).status == 400  # fmt: skip


def test_with_a_group_only_what_it_has_finished_is_listed(streams: Streams) -> None:
    counted(streams, *range(8), retry_limit=0)
    first = streams.poll()
    assert ranges(streams, group="g")["windows"] == []
    assert streams.ack(first).status == 200
    assert streams.ack(streams.poll(), success=False, error="dead").status == 200
    third = streams.poll()
    assert streams.ack(third).status == 200
    assert streams.poll() is not None
    assert [one["id"] for one in ranges(streams, group="g")["windows"]] == [
        first["id"],
        third["id"],
    ]

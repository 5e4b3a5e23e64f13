"""What readers are told, in a form that can be compared, and a comparison that says where it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from queen.core.frame import CONTENT_TYPE, Frame, stored_frames
from queen.wire.frames.joined_frame import (
    ACCEPT_ANY_ORDER,
    ACCEPT_JOINED,
    ANY_ORDER,
    JOINED,
    PLAIN,
    Accepted,
    received_frames,
)
from tests.api import Api
from tests.frame_contents import Told, told

ROOT = "/api/v1/fetch"
_LONGEST = 300

_ACCEPT = {PLAIN: CONTENT_TYPE, JOINED: ACCEPT_JOINED, ANY_ORDER: ACCEPT_ANY_ORDER}

Stretch = tuple[str, int, int, int]


def ask_frames(api: Api, path: str, body: Any = None, *, accepted: Accepted = PLAIN) -> list[Frame]:
    method = "GET" if body is None else "POST"
    answer = api.call(method, path, body, {"accept": _ACCEPT[accepted]})
    assert answer.status == 200, answer.raw
    return list(received_frames(answer.raw) if accepted.joined else stored_frames(answer.raw))


def fetch_path(queue: str, partition: str | None = None, **query: Any) -> str:
    path = f"{ROOT}/queue/{quote(queue, safe='')}"
    if partition is not None:
        path += f"/partition/{quote(partition, safe='')}"
    return f"{path}?{urlencode(query)}" if query else path


def stretches(frames: Sequence[Frame]) -> list[Stretch]:
    """Return which messages were stored together: partition, offset, time and count."""
    return [
        (part.partition, part.base_offset, part.created_at_us, part.messages)
        for frame in frames
        for part in frame.parts()[1].rows()
    ]


def read(api: Api, path: str, body: Any = None) -> dict[str, Any]:
    """Return what is told in frames of all kinds."""
    plain = ask_frames(api, path, body)
    joined = ask_frames(api, path, body, accepted=JOINED)
    laid = ask_frames(api, path, body, accepted=ANY_ORDER)
    answers: dict[str, Any] = {
        "messages": told(plain),
        "frames": stretches(plain),
        "joined": told(joined),
        "stretches": stretches(joined),
    }
    # They never differ: what is wrong with one alone is seen at once.
    same(answers["joined"], answers["messages"], "joined frames")
    same(in_order_of_time(laid), answers["messages"], "frames in any order")
    return answers


def told_of(data: bytes, accepted: Accepted = PLAIN) -> list[Told]:
    if not accepted.joined:
        return told(stored_frames(data))
    return in_order_of_time(received_frames(data))


def in_order_of_time(frames: Iterable[Frame]) -> list[Told]:
    """Return what frames tell, those that go on put into order with what follows them."""
    messages: list[Told] = []
    page: list[Frame] = []
    for frame in frames:
        page.append(frame)
        if frame.goes_on:
            continue
        messages += told(page) if len(page) == 1 else sorted(told(page), key=_place)
        offsets: dict[int, int] = {}
        for each in told(page):
            assert offsets.get(each.partition_id, -1) < each.offset, "a partition out of its order"
            offsets[each.partition_id] = each.offset
        page = []
    assert not page, "the last frame goes on"
    return messages


def _place(message: Told) -> tuple[int, int, int]:
    return message.created_at_us, message.partition_id, message.offset


def same(now: Any, before: Any, what: str) -> None:
    """Say where two answers differ, and not only that they do."""
    if now == before:
        return
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        only = set(now).symmetric_difference(before)
        assert not only, f"{what}: only on one side: {sorted(map(str, only))[:10]}"
        for key in before:
            same(now[key], before[key], f"{what} > {key}")
    elif _is_list(now) and _is_list(before):
        for at, (ours, theirs) in enumerate(zip(now, before, strict=False)):
            same(ours, theirs, f"{what} > [{at} of {len(now)}, {len(before)} expected]")
        raise AssertionError(
            f"{what}: {len(now)} and not {len(before)}; the first that has no partner is "
            f"{_short((list(now) + list(before))[min(len(now), len(before))])}"
            if len(now) != len(before)
            else f"{what}: {_short(now)} and not {_short(before)}"
        )
    raise AssertionError(f"{what}: {_short(now)} and not {_short(before)}")


def _is_list(value: Any) -> bool:
    # A message is shown as a whole.
    return isinstance(value, list)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def without(value: Any, *names: str) -> Any:
    """Return a JSON value without fields that are different each time."""
    if isinstance(value, dict):
        return {key: without(one, *names) for key, one in value.items() if key not in names}
    if isinstance(value, list):
        return [without(one, *names) for one in value]
    return value

"""What readers are told, in a form that can be compared, and a comparison that says where it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from queen.core.frame import CONTENT_TYPE, Frame, stored_frames
from queen.wire.frames.joined_frame import ACCEPT_JOINED, received_frames
from tests.api import Api
from tests.frame_contents import Told, told

ROOT = "/api/v1/fetch"
_LONGEST = 300

Stretch = tuple[str, int, int, int]


def ask_frames(api: Api, path: str, body: Any = None, *, joined: bool = False) -> list[Frame]:
    method = "GET" if body is None else "POST"
    accept = ACCEPT_JOINED if joined else CONTENT_TYPE
    answer = api.call(method, path, body, {"accept": accept})
    assert answer.status == 200, answer.raw
    return list(received_frames(answer.raw) if joined else stored_frames(answer.raw))


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
    """Return what is told in frames, and in joined frames."""
    plain = ask_frames(api, path, body)
    joined = ask_frames(api, path, body, joined=True)
    answers: dict[str, Any] = {
        "messages": told(plain),
        "frames": stretches(plain),
        "joined": told(joined),
        "stretches": stretches(joined),
    }
    # They never differ: what is wrong with one alone is seen at once.
    same(answers["joined"], answers["messages"], "joined frames")
    return answers


def told_of(data: bytes, *, joined: bool = False) -> list[Told]:
    return told(received_frames(data) if joined else stored_frames(data))


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

"""Requests of pushes: frames for a server that takes them, JSON for any other.

Frames are the quicker language and JSON the more talkative one. A server refuses a request of
frames as a whole when one message in it is wrong, and has stored nothing then; the same messages
as JSON are stored but for the wrong one, which is named. So whatever is refused is sent as JSON,
and results and errors are the same in both languages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from queen.client.pushing.batches import PartitionKey, PushBatch
from queen.client.queues.messages import BUFFERED, Pushed
from queen.client.queues.partial_requests import is_stored
from queen.client.transport.errors_from_answer import decode_answer
from queen.client.transport.http import Answer
from queen.core.columns.headers import headers_text
from queen.core.ids import MAX_FAST_OFFSET, message_id, message_prefix, parse_partition
from queen.errors import QueenError, Unreachable

# With fewer messages for each partition JSON is as quick.
_MESSAGES_PER_FRAME = 8

_pushed = msgspec.json.Decoder(list[Pushed])


class FrameResult(msgspec.Struct, rename="camel"):
    """What became of one frame."""

    status: str = ""
    partition_id: str | None = None
    base_offset: int = 0
    # Places within the frame of what was stored before.
    duplicates: list[int] = []
    # Where each message is, when they do not follow each other from `base_offset` on.
    offsets: list[int] | None = None

    def pushed(self, ids: Sequence[str]) -> list[Pushed]:
        """Return the results of its messages."""
        number = parse_partition(self.partition_id or "")
        if self.status == BUFFERED or number is None:
            return [Pushed(status=self.status, transaction_id=name) for name in ids]
        offsets: Iterable[int] = range(self.base_offset, self.base_offset + len(ids))
        if self.offsets is not None:
            offsets = self.offsets
        pushed = [
            Pushed(
                status="queued",
                transaction_id=name,
                message_id=message,
                partition_id=self.partition_id,
            )
            for name, message in zip(ids, _message_ids(number, offsets), strict=True)
        ]
        for at in self.duplicates:
            pushed[at].status = "duplicate"
        return pushed


def _message_ids(partition: int, offsets: Iterable[int]) -> list[str]:
    if isinstance(offsets, range) and offsets.stop < MAX_FAST_OFFSET:
        prefix = message_prefix(partition)
        return [f"{prefix}{offset:012x}" for offset in offsets]
    return [message_id(partition, offset) for offset in offsets]


_frame_results = msgspec.json.Decoder(list[FrameResult])


class _Frame(NamedTuple):
    """One frame of a request, and which messages of the request it holds."""

    key: PartitionKey
    places: list[int]
    ids: list[str]
    payloads: list[bytes]
    traces: list[str | None]
    # As they are stored: a text for each message that has some.
    headers: list[str | None]

    def add(self, places: Sequence[int], ids: Sequence[str], payloads: Sequence[bytes]) -> None:
        self.places.extend(places)
        self.ids.extend(ids)
        self.payloads.extend(payloads)
        self.traces.extend([None] * len(places))
        self.headers.extend([None] * len(places))

    def encode(self) -> bytes:
        from queen.core.frame import encode_frame

        columns = {"traceId": self.traces, "headers": self.headers}
        extras = {name: column for name, column in columns.items() if any(column)}
        return encode_frame(*self.key, self.ids, self.payloads, extras)


def _frame_in(frames: dict[PartitionKey, _Frame], key: PartitionKey) -> _Frame:
    frame = frames.get(key)
    if frame is None:
        frame = frames[key] = _Frame(key, [], [], [], [], [])
    return frame


class PushRequest:
    """Messages of one or several batches in one request."""

    def __init__(
        self,
        batches: Sequence[PushBatch],
        options: Mapping[str, Any] | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        self._batches = batches
        self._options = options or {}
        # Which of its messages are sent; None: all.
        self._places = places
        self._json: bytes | None = None
        self._frames: list[_Frame] = []
        self._encoded: bytes | None = None
        self._may_be_frames = places is None and not options
        # How it was sent last.
        self.went_as_frames = False

    # ---- to a server ----

    def as_json(self) -> bytes:
        if self._json is None:
            items = [batch.item(at) for batch in self._batches for at in range(len(batch))]
            if self._places is not None:
                items = [items[at] for at in self._places]
            self._json = msgspec.json.encode({"items": items, **self._options})
        return self._json

    def as_frames(self) -> bytes | None:
        """Return the messages as frames; None when there is something that no frame can say, or
        when they go to many partitions."""
        if self._encoded is None and self._may_be_frames:
            try:
                self._encoded = self._encode_frames()
            except (ValueError, TypeError, AttributeError, struct.error):
                # A name or an id that is none: whoever reads JSON says which.
                self._encoded = None
            self._may_be_frames = self._encoded is not None
        return self._encoded

    def _encode_frames(self) -> bytes | None:
        if any(batch.is_timed for batch in self._batches):
            return None
        count = sum(map(len, self._batches))
        if self._is_spread(count):
            return None
        self._frames = self._part_by_partition()
        return b"".join([frame.encode() for frame in self._frames])

    def _is_spread(self, count: int) -> bool:
        """Whether the messages go to many partitions, a few to each."""
        keys = set().union(*(batch.keys() for batch in self._batches))
        return count < _MESSAGES_PER_FRAME * len(keys)

    def _part_by_partition(self) -> list[_Frame]:
        frames: dict[PartitionKey, _Frame] = {}
        place = 0
        for batch in self._batches:
            if batch.messages is None:
                frame = _frame_in(frames, (batch.queue, batch.partition))
                frame.add(range(place, place + len(batch)), batch.ids, batch.payloads)
            else:
                for at, message in enumerate(batch.messages):
                    frame = _frame_in(frames, (batch.queue, batch.partition_of(at)))
                    frame.add((place + at,), batch.ids[at : at + 1], batch.payloads[at : at + 1])
                    frame.traces[-1] = message.trace_id
                    frame.headers[-1] = headers_text(message.headers)
            place += len(batch)
        return list(frames.values())

    # ---- from a server ----

    def results(self, answer: Answer) -> list[Pushed]:
        """Return what became of each message, in their order."""
        if not self.went_as_frames:
            return decode_answer(_pushed, answer)
        results = decode_answer(_frame_results, answer)
        if len(results) != len(self._frames):
            raise Unreachable("the answer is not one of Queen's: it tells of other frames")
        if len(results) == 1:
            return results[0].pushed(self._frames[0].ids)
        placed: dict[int, Pushed] = {}
        for frame, result in zip(self._frames, results, strict=True):
            placed.update(zip(frame.places, result.pushed(frame.ids), strict=True))
        return [placed[place] for place in sorted(placed)]

    def explain(self, error: QueenError) -> QueenError:
        """Let an error that tells of frames tell of messages instead, as an answer to JSON does."""
        results = error.details.get("results")
        if not (
            self.went_as_frames
            and isinstance(results, list)
            and len(results) == len(self._frames)
            and error.details.get("items") is None
        ):
            return error
        stored: list[dict[str, Any]] = []
        refused: list[dict[str, Any]] = []
        for frame, result in zip(self._frames, results, strict=True):
            if is_stored(result):
                told = msgspec.convert(result, FrameResult, strict=False).pushed(frame.ids)
                stored += [
                    {"index": place, **msgspec.structs.asdict(pushed)}
                    for place, pushed in zip(frame.places, told, strict=True)
                ]
            else:
                reason = result.get("error", error.message)
                why = {"reason": reason, "code": result.get("code", error.code)}
                refused += [{"index": place, **why} for place in frame.places]
        error.details["results"] = sorted(stored, key=_index_of)
        error.details["items"] = sorted(refused, key=_index_of)
        return error


def _index_of(told: Mapping[str, Any]) -> int:
    return int(told["index"])

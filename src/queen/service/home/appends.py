"""Appends and their answers, on their way to the home and back."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from queen.core.frame import CODEC_RAW, Segment, decode_body, encode_body
from queen.service.home.calls import AppendAnswer, PushCall, PushedAppend, error_of, failure_of
from queen.service.home.places import Places
from queen.service.log.append import OWN_SEGMENT_MESSAGES, Append
from queen.service.spooling.entrance import Buffering


class _IdsOf(Sequence[bytes]):
    """The ids of a segment; they are cut out when somebody asks, which is rare."""

    __slots__ = ("_segment",)

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __len__(self) -> int:
        return self._segment.count

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            return self._segment.id_bytes()[at]
        return self._segment.id_bytes(at, at + 1)[0]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._segment.id_bytes())


# ---- at the front ----


def push_call(appends: list[Append], buffering: Buffering | None) -> PushCall:
    if buffering is None:
        return PushCall([_pushed(append) for append in appends])
    return PushCall([_pushed(append) for append in appends], True, *buffering)


def _pushed(append: Append) -> PushedAppend:
    if append.encoded is None and len(append) >= OWN_SEGMENT_MESSAGES:
        # Here and not at the home: it is the dearest part of a large push.
        append.encode()
    if append.encoded is not None:
        return _pushed_segment(append)
    assert append.payloads is not None
    return PushedAppend(
        append.queue,
        append.partition,
        append.weight,
        list(append.ids),
        list(map(bytes, append.payloads)),
        {name: list(values) for name, values in append.extras.items()} if append.extras else None,
    )


def _pushed_segment(append: Append) -> PushedAppend:
    assert append.encoded is not None and append.segment is not None
    codec, stored = append.encoded
    return PushedAppend(
        append.queue,
        append.partition,
        append.weight,
        [],
        [],
        None,
        codec,
        stored,
        b"" if codec == CODEC_RAW else encode_body(append.segment),
        append.hash().tobytes(),
    )


def take_answers(appends: list[Append], answers: list[AppendAnswer], places: Places) -> None:
    """Let appends be as the home's are, as far as answers are made of them."""
    for append, answer in zip(appends, answers, strict=True):
        if answer.error is not None:
            append.error = error_of(answer.error)
            continue
        append.is_buffered = answer.is_buffered
        append.base_offset = answer.base_offset
        append.first_try_head = answer.first_try_head
        append.target = places.of_push(answer.partition_id, append.queue, append.partition)
        if answer.repeats is not None:
            append.repeats = {
                index: (_stored_at(offset), 0) if is_of_flush else offset
                for index, (offset, is_of_flush) in answer.repeats.items()
            }


def _stored_at(offset: int) -> Append:
    """Return an append whose first message is at an offset."""
    append = Append("", "", (b"",), (b"",), 0)
    append.base_offset = offset
    return append


# ---- at the home ----


def appends_of(call: PushCall) -> list[Append]:
    return [_append_of(pushed) for pushed in call.appends]


def _append_of(pushed: PushedAppend) -> Append:
    if not pushed.stored:
        return Append(
            pushed.queue,
            pushed.partition,
            pushed.ids,
            pushed.payloads,
            pushed.weight,
            pushed.extras,
        )
    segment = decode_body(pushed.body or pushed.stored)
    append = Append(
        pushed.queue,
        pushed.partition,
        _IdsOf(segment),
        None,
        pushed.weight,
        segment.extras,
        segment,
    )
    append.encoded = pushed.codec, pushed.stored
    append.hashes = array("Q", pushed.hashes)
    return append


def answer_of(append: Append) -> AppendAnswer:
    if append.error is not None:
        return AppendAnswer(0, 0, error=failure_of(append.error))
    partition_id = append.target.id if append.target is not None else 0
    if append.repeats is None:
        return AppendAnswer(
            partition_id, append.base_offset, append.is_buffered, append.first_try_head
        )
    repeats = {
        index: (append.offset_of(index), isinstance(repeat, tuple))
        for index, repeat in append.repeats.items()
    }
    return AppendAnswer(
        partition_id, append.base_offset, append.is_buffered, append.first_try_head, repeats
    )

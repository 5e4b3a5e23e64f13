"""Frames of a push: whole segments, each checked as if a stranger had made it."""

from __future__ import annotations

from collections.abc import Mapping

from queen.core.columns.framecheck import check_ids, check_payloads
from queen.core.columns.headers import HEADERS, text_with_trace
from queen.core.frame import Frame, unpack_frames
from queen.core.names import DEFAULT_PARTITION, reason_against_name
from queen.errors import InvalidFrame, PayloadTooLarge
from queen.service.log.append import Append


def appends_of_frames(
    body: bytes, max_bytes: int, subject: str | None, trace: Mapping[str, str] | None = None
) -> list[Append]:
    """Return the frames of a request as appends of a producer; raises when one is wrong. Messages
    without a trace get that of the request."""
    frames = list(unpack_frames(body))
    if not frames:
        raise InvalidFrame("the body holds no frame")
    # Added up before anything is inflated: many small frames can hold as much as one.
    if sum(frame.raw_bytes for frame in frames) > max_bytes:
        raise PayloadTooLarge(f"the frames inflate to more than {max_bytes} bytes")
    appends = [_append_of(frame, index) for index, frame in enumerate(frames)]
    for append in appends if subject is not None or trace else ():
        _stamp(append, subject, trace or {})
    return appends


def _append_of(frame: Frame, index: int) -> Append:
    partition = frame.partition or DEFAULT_PARTITION
    reason = reason_against_name("queue", frame.queue) or reason_against_name(
        "partition", partition
    )
    if reason:
        raise InvalidFrame(f"frame {index}: {reason}")
    try:
        segment = frame.segment()
        ids = check_ids(segment)
        check_payloads(segment)
    except InvalidFrame as error:
        raise InvalidFrame(f"frame {index}: {error.message}") from None
    append = Append(frame.queue, partition, ids, None, frame.raw_bytes, segment.extras, segment)
    append.encoded = (frame.codec, frame.body)
    return append


def _stamp(append: Append, subject: str | None, trace: Mapping[str, str]) -> None:
    """Write into a frame who has sent it, and in which trace. What a frame itself says of its
    sender was refused."""
    segment = append.segment
    assert segment is not None
    extras = dict(segment.extras)
    if subject is not None:
        extras["producerSub"] = [subject] * segment.count
    if trace:
        texts = extras.get(HEADERS) or [None] * segment.count
        extras[HEADERS] = [text_with_trace(text, trace) for text in texts]
    segment.extras = append.extras = extras
    append.encode()

"""The only place of the benchmarks that knows the broker's segment frames."""

from collections.abc import Sequence

from queen.core.frame import compress, encode_body, encode_frame, segment_of
from queen.core.hashing import hash_ids
from queen.wire.frames.joined_frame import ACCEPT_ANY_ORDER, ACCEPT_JOINED, received_frames

MEDIA_TYPE = "application/vnd.queen.segment"
JOINED_MEDIA_TYPE = ACCEPT_JOINED
ANY_ORDER_MEDIA_TYPE = ACCEPT_ANY_ORDER


def frame(
    queue: str, partition: str, transaction_ids: Sequence[str], payloads: Sequence[bytes]
) -> bytes:
    return encode_frame(queue, partition, transaction_ids, payloads)


def count_messages(frames: bytes) -> int:
    return sum(frame.segment().count for frame in received_frames(frames))


def stored_row(
    transaction_ids: Sequence[str], payloads: Sequence[bytes]
) -> tuple[int, bytes, bytes]:
    """Return codec, hashes and body of messages as the broker stores them."""
    ids = [name.encode() for name in transaction_ids]
    codec, body = compress(encode_body(segment_of(ids, list(payloads))))
    return codec, hash_ids(ids).tobytes(), body

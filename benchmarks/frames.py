"""The only place of the benchmarks that knows the broker's segment frames."""

from collections.abc import Sequence

from queen.core.frame import encode_frame, unpack_frames

MEDIA_TYPE = "application/vnd.queen.segment"


def frame(
    queue: str, partition: str, transaction_ids: Sequence[str], payloads: Sequence[bytes]
) -> bytes:
    return encode_frame(queue, partition, transaction_ids, payloads)


def count_messages(frames: bytes) -> int:
    return sum(one.count for one in unpack_frames(frames))

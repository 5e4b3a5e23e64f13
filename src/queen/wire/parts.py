"""What values on the wire look like, for the API document.

These say nothing to the decoders: a name that is too long is refused by the rule in
`core.names`, with a reason that a schema could not give. They tell readers and generators of
clients what will be taken.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from queen.core.columns.headers import (
    MAX_HEADER_NAME_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_HEADERS_BYTES,
)
from queen.core.cursor import ACK_STATUSES
from queen.core.names import MAX_NAME_BYTES, MAX_TRANSACTION_ID_BYTES

_IN_NAMES = "printable characters, at most 255 bytes of UTF-8"
_EXAMPLE_UUID = "00000000-0000-8007-bfff-ffffffffffff"

Name = Annotated[
    str,
    Meta(
        description=f"A name: {_IN_NAMES}.",
        extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_BYTES},
    ),
]
# A name, or nothing at all.
Label = Annotated[
    str,
    Meta(description=f"A label: {_IN_NAMES}.", extra_json_schema={"maxLength": MAX_NAME_BYTES}),
]
TransactionId = Annotated[
    str,
    Meta(
        description="Names a message within its partition: at most 255 bytes of UTF-8.",
        extra_json_schema={"minLength": 1, "maxLength": MAX_TRANSACTION_ID_BYTES},
    ),
]
PartitionId = Annotated[
    str,
    Meta(
        description="The id of a partition, as a push or a pop answers it.",
        extra_json_schema={"format": "uuid", "examples": [_EXAMPLE_UUID]},
    ),
]
MessageId = Annotated[
    str,
    Meta(
        description="The id of a message: its partition and its offset in the shape of a UUID.",
        extra_json_schema={"format": "uuid"},
    ),
]
LeaseId = Annotated[
    str,
    Meta(description="The lease of a pop.", extra_json_schema={"format": "uuid"}),
]
# Looked at where it is used, so that one that is wrong is refused by itself.
RetryAfterMs = (
    Annotated[
        int,
        Meta(
            description="For `failed` and `retry`: the milliseconds until it comes again, instead "
            "of what the queue says; at most the `retryMaxDelay` of the queue.",
            extra_json_schema={"minimum": 0},
        ),
    ]
    | None
)
Headers = Annotated[
    dict[str, str],
    Meta(
        description=(
            f"Texts beside the payload: at most {MAX_HEADERS}, names of 1 to "
            f"{MAX_HEADER_NAME_BYTES} bytes without control characters, values of at most "
            f"{MAX_HEADER_VALUE_BYTES} bytes without NUL, {MAX_HEADERS_BYTES} bytes together."
        ),
        extra_json_schema={"maxProperties": MAX_HEADERS},
    ),
]
Instant = Annotated[
    str,
    Meta(
        description="An instant in UTC, ISO-8601.",
        extra_json_schema={"format": "date-time", "examples": ["2026-01-02T03:04:05.000000Z"]},
    ),
]
AckStatus = Annotated[
    str | None,
    Meta(
        description=(
            "What became of the message: `completed` (also `success`, `acked`) is done, "
            "`failed` (also `nack`) counts as a try and comes again or dies, `retry` comes again "
            "without counting, `dlq` dies at once. Left out, it is `completed`."
        ),
        extra_json_schema={"enum": [*ACK_STATUSES, None]},
    ),
]

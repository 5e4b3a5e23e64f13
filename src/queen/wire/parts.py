"""What values on the wire look like, for the API document.

These say nothing to the decoders: a name that is too long is refused by the rule in
`core.names`, with a reason that a schema could not give. They tell readers and generators of
clients what will be taken.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

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

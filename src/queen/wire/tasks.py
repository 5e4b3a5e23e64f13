"""Jobs on the wire: pushed under a key, finished with a result, and asked for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from queen.core.tasks import jobs
from queen.wire.parts import Headers, LeaseId, Name, PartitionId, TransactionId
from queen.wire.requests import AckOperation

MAX_FINISHED = 1000
MAX_WAIT_MS = 60_000

_NULL = msgspec.Raw(b"null")

_Key = Annotated[
    str,
    Meta(
        description=f"At most {jobs.MAX_KEY_BYTES} bytes; counts within the queue.",
        extra_json_schema={"minLength": 1, "maxLength": jobs.MAX_KEY_BYTES},
    ),
]
_KeepS = Annotated[
    float,
    Meta(
        description="How long the result is kept, in seconds; 0 keeps none.",
        extra_json_schema={"minimum": 0, "maximum": jobs.MAX_KEEP_S},
    ),
]


class UniquePush(msgspec.Struct, rename="camel"):
    """A message to push unless another one has its key."""

    queue: Name
    key: _Key
    payload: Annotated[msgspec.Raw, Meta(description="Any JSON.")] = msgspec.field(
        default_factory=lambda: _NULL
    )
    partition: (
        Annotated[Name, Meta(description="Left out, it is the one that `transactionId` names.")]
        | None
    ) = None
    transaction_id: (
        Annotated[TransactionId, Meta(description="Left out, the broker makes one up.")] | None
    ) = None
    headers: Headers | None = None
    consumer_group: Annotated[
        Name, Meta(description="Done is what this group has acknowledged.")
    ] = "workers"
    hold_s: Annotated[
        float,
        Meta(
            description="The key is kept so long from now, even when the job is done before.",
            extra_json_schema={"minimum": 0, "maximum": jobs.MAX_KEEP_S},
        ),
    ] = 0.0
    deliver_at: Annotated[str, Meta(description="When it is due: an ISO-8601 time.")] | None = None
    delay: Annotated[float, Meta(description="Seconds until it is due.")] | None = None


class UniquePushed(msgspec.Struct, rename="camel"):
    """The job that has the key."""

    queue: str
    partition: str
    transaction_id: str
    # It had the key before: nothing was pushed.
    existed: bool


class FinishedJob(msgspec.Struct, rename="camel"):
    """What became of one leased job."""

    transaction_id: TransactionId
    partition_id: PartitionId
    lease_id: LeaseId
    status: Annotated[
        str, Meta(description="As in an acknowledgment: completed, failed, retry, dlq.")
    ] = "completed"
    error: Annotated[str, Meta(description="Why it failed.")] | None = None
    result: Annotated[
        msgspec.Raw,
        Meta(description=f"What it returned: JSON of at most {jobs.MAX_RESULT_BYTES} bytes."),
    ] = msgspec.field(default_factory=lambda: _NULL)
    keep_s: _KeepS = float(jobs.DEFAULT_KEEP_S)
    key: Annotated[_Key, Meta(description="The key it was pushed with, if any.")] | None = None

    def ack(self) -> AckOperation:
        """Return it as the acknowledgment that it is."""
        return AckOperation(
            transactionId=self.transaction_id,
            partitionId=self.partition_id,
            status=self.status,
            error=self.error,
            leaseId=self.lease_id,
        )


class FinishRequest(msgspec.Struct, rename="camel"):
    jobs: Annotated[
        list[FinishedJob],
        Meta(
            description=f"At most {MAX_FINISHED}.",
            extra_json_schema={"minItems": 1, "maxItems": MAX_FINISHED},
        ),
    ]
    consumer_group: (
        Annotated[Name, Meta(description="Left out, the acknowledgments are of queue mode.")] | None
    ) = None


class FinishResult(msgspec.Struct):
    success: bool
    error: str | None
    # It was given up, and is a dead letter now.
    dlq: bool


class FinishAnswer(msgspec.Struct):
    """What became of each job, in the order in which they came."""

    results: list[FinishResult]


class JobShown(msgspec.Struct, rename="camel"):
    """Where a job stands."""

    queue: str
    id: str
    partition: str
    state: Literal["scheduled", "waiting", "running", "done", "failed", "unknown"]
    # Whether it has a result that is kept.
    has_result: bool
    result: msgspec.Raw
    error: str | None
    attempts: int
    due_at: str | None
    finished_at: str | None
    expires_at: str | None

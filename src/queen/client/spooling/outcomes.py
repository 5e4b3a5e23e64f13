"""What a broker's answer means for records that were sent from a spool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from queen.client.queues.partial_requests import is_stored
from queen.client.spooling.backlog import Waiting
from queen.client.spooling.records import PartitionKey
from queen.client.transport.errors_from_answer import error_named, is_worth_repeating
from queen.errors import (
    BadRequest,
    EncryptionUnavailable,
    HeadersTooLarge,
    InvalidItem,
    PayloadTooLarge,
    QueenError,
    QueueFull,
    RequestTimeout,
    SpoolFull,
    Unavailable,
    UnsupportedMedia,
)

# They say something of one queue, and nothing of the broker.
_OF_A_QUEUE = (QueueFull, EncryptionUnavailable)
# About the request, or what lies between; no record is at fault.
_OF_THE_REQUEST = (HeadersTooLarge, RequestTimeout, UnsupportedMedia)


def is_outage(error: QueenError) -> bool:
    """Whether a broker cannot take anything now, or nobody knows whether it did."""
    return isinstance(error, Unavailable | SpoolFull) and not isinstance(error, _OF_A_QUEUE)


class BatchOutcome(NamedTuple):
    stored: list[Waiting]
    # Never to be taken, with the reasons.
    refused: list[tuple[Waiting, str]]
    # Not taken for now, by partition.
    held: dict[PartitionKey, QueenError]


def outcome_of(batch: Sequence[Waiting], error: QueenError) -> BatchOutcome | None:
    """Return what became of each record of a refused request; None when it says nothing of
    any of them."""
    items = error.details.get("items")
    if isinstance(items, list) and items:
        return _outcome_of_items(batch, error, items)
    if isinstance(error, _OF_A_QUEUE):
        return BatchOutcome([], [], {waiting.key: error for waiting in batch})
    if len(batch) > 1 or not is_of_records(error):
        return None
    (alone,) = batch
    if isinstance(error, BadRequest):
        return BatchOutcome([], [(alone, error.message)], {})
    return BatchOutcome([], [], {alone.key: error})


def is_of_records(error: QueenError) -> bool:
    """Whether a refusal of several records may be about some of them only."""
    if isinstance(error, _OF_THE_REQUEST):
        return False
    if isinstance(error, PayloadTooLarge):
        return True
    # A broker names its errors; what lies between does not.
    is_told = "code" in error.details
    return is_told and (isinstance(error, BadRequest) or type(error) is QueenError)


def _outcome_of_items(
    batch: Sequence[Waiting], error: QueenError, items: list[dict[str, object]]
) -> BatchOutcome | None:
    results = error.details.get("results")
    stored = [
        batch[result["index"]]
        for result in (results if isinstance(results, list) else ())
        if is_stored(result)
    ]
    refused: list[tuple[Waiting, str]] = []
    held: dict[PartitionKey, QueenError] = {}
    for item in items:
        waiting = batch[int(str(item["index"]))]
        reason = _reason_of(item, error)
        # An error inside the broker says nothing against the record.
        if is_worth_repeating(reason) or type(reason) is QueenError:
            held.setdefault(waiting.key, reason)
        else:
            refused.append((waiting, f"{reason.code}: {reason.message}"))
    if not stored and not refused and all(map(is_outage, held.values())):
        return None
    return BatchOutcome(stored, refused, held)


def _reason_of(item: dict[str, object], error: QueenError) -> QueenError:
    """Return why an item was refused. The answer itself has the reason of the first, and more."""
    code = str(item.get("code"))
    if code == error.code and not isinstance(error, InvalidItem):
        return error
    return error_named(code, str(item.get("reason")), {})

"""Requests that a server takes in part.

A push may go to several partitions, and each is stored or refused by itself: a queue that is full
does not keep the others out. The refusal then says what became of each. What is stored must not be
sent again, whatever the dedup of its queue; what may be stored later is sent again by itself;
what is refused for good is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from queen.client.queues.messages import Pushed
from queen.client.transport.errors_from_answer import error_named, is_worth_repeating
from queen.errors import InvalidItem, QueenError

_REFUSED = "refused"
# Refusals that are about the queue of the first frame, and say nothing of other queues.
_OF_A_QUEUE = {"queue_full", "encryption_unavailable"}


class Outcome(NamedTuple):
    """What became of one frame of a request."""

    result: dict[str, Any]
    # Why it was not stored. None with a frame that was refused: the answer does not say why.
    error: QueenError | None = None

    @property
    def is_stored(self) -> bool:
        return is_stored(self.result)

    @property
    def is_refused_for_good(self) -> bool:
        return self.error is not None and not is_worth_repeating(self.error)


def is_stored(result: object) -> bool:
    """Whether the result of a frame or of an item says that the broker has it."""
    return isinstance(result, dict) and result.get("status") not in (_REFUSED, "failed")


def is_partly_done(error: QueenError) -> bool:
    """Whether a part of a refused request was stored, so that it is not sent again as a whole."""
    results = error.details.get("results")
    return isinstance(results, list) and any(map(is_stored, results))


def refusal(error: QueenError) -> dict[str, Any]:
    """Return the result of a frame that was refused by itself."""
    return {
        "status": _REFUSED,
        "count": 0,
        "error": error.message,
        "code": error.code,
        "retryable": is_worth_repeating(error),
    }


def outcomes_of(error: QueenError, queues: Sequence[str]) -> list[Outcome] | None:
    """Return what became of each frame of a refused request; None when all have the same.

    A server names the reason of the first frame that it refused. Others of the same queue share
    it when it may pass: they are sent again together. Why the rest was refused is unknown,
    unless the server says so for each.
    """
    results = error.details.get("results")
    if not (isinstance(results, list) and len(results) == len(queues)):
        if error.code not in _OF_A_QUEUE:
            return None
        results = [{"status": _REFUSED} for _ in queues]
    first = next((at for at, result in enumerate(results) if not is_stored(result)), 0)
    return [
        Outcome(result)
        if is_stored(result)
        else Outcome(
            result, error if at == first else _reason(result, error, queue == queues[first])
        )
        for at, (result, queue) in enumerate(zip(results, queues, strict=True))
    ]


def _reason(
    result: Mapping[str, Any], error: QueenError, is_of_same_queue: bool
) -> QueenError | None:
    """Return why a frame was refused that is not the first, as far as the answer tells."""
    if "code" in result:
        return error_named(str(result["code"]), str(result.get("error")), dict(result))
    is_same = is_worth_repeating(error) or result.get("error") == error.message
    return error if is_of_same_queue and is_same else None


def stored_results(pushed: Mapping[int, Pushed]) -> list[dict[str, Any]]:
    """Return what is stored of a push that failed, as a server lists it."""
    return [
        {"index": at, "transaction_id": result.transaction_id, "status": result.status}
        for at, result in sorted(pushed.items())
    ]


class ItemPush:
    """A push of messages, in as many requests as it takes. What the user pushed `before` them is
    stored already, and counts where items are named by their index."""

    def __init__(
        self, count: int, before: Sequence[Pushed], stored: Mapping[int, Pushed] | None = None
    ) -> None:
        self._count = count
        self._first = len(before)
        self._stored: dict[int, Pushed] = {
            at - len(before): result for at, result in enumerate(before)
        }
        self._left: Sequence[int] = range(count)
        if stored:
            self._stored |= stored
            self._left = [at for at in self._left if at not in stored]
        self._asked: Sequence[int] = self._left

    @property
    def is_whole(self) -> bool:
        """Whether nothing of it is stored yet."""
        return len(self._left) == self._count

    def next_places(self) -> Sequence[int]:
        """Return which messages go into the next request."""
        self._asked = self._left
        return self._asked

    def note_stored(self, error: QueenError) -> bool:
        """Note what a refused request has stored; return whether to send the rest again."""
        if not is_partly_done(error):
            return False
        stored = [result for result in error.details["results"] if is_stored(result)]
        for result in stored:
            self._stored[self._asked[result["index"]]] = msgspec.convert(
                result, Pushed, strict=False
            )
        self._left = [at for at in self._asked if at not in self._stored]
        refused = error.details.get("items")
        return all(map(_may_pass, refused)) if refused else is_worth_repeating(error)

    def may_pass(self, error: QueenError) -> bool:
        """Whether nothing of what a refused request has not stored is refused for good."""
        refused = error.details.get("items")
        return is_worth_repeating(error) and all(map(_may_pass, refused or ()))

    def finish(self, pushed: list[Pushed]) -> list[Pushed]:
        """Return what became of all items, now that the last of them are stored."""
        if len(self._asked) == self._count:
            return pushed
        self._stored |= dict(zip(self._asked, pushed, strict=True))
        return [self._stored[at] for at in range(self._count)]

    def explain(self, error: QueenError) -> QueenError:
        """Return an error that names items as the user knows them, and says what is stored."""
        if self._stored:
            for item in error.details.get("items", ()):
                item["index"] = self._index(item["index"])
            if isinstance(error, InvalidItem) and error.index >= 0:
                error.index = self._index(error.index)
                error.args = (f"item {error.index}: {error.reason}",)
            shifted = {at + self._first: pushed for at, pushed in self._stored.items()}
            error.details["results"] = stored_results(shifted)
        return error

    def _index(self, asked: int) -> int:
        return self._asked[asked] + self._first


def _may_pass(refused: Mapping[str, Any]) -> bool:
    code = str(refused.get("code"))
    return is_worth_repeating(error_named(code, str(refused.get("reason")), {}))

"""From an answer that is not a success to the error that the server meant."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from queen import errors
from queen.client.transport.http import Answer

_object = msgspec.json.Decoder(dict[str, Any])

T = TypeVar("T")

_RETRY_AFTER = "retryAfterSeconds"


def _all_errors(root: type[errors.QueenError]) -> dict[str, type[errors.QueenError]]:
    by_code = {root.code: root}
    for child in root.__subclasses__():
        # A class without a code of its own has its parent's; the parent stands for both.
        by_code = {**_all_errors(child), **by_code}
    return by_code


_BY_CODE = _all_errors(errors.QueenError)
# For servers that send no code: the original broker, a proxy.
_BY_STATUS: dict[int, type[errors.QueenError]] = {
    400: errors.BadRequest,
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.RequestTimeout,
    409: errors.Conflict,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedMedia,
    429: errors.Overloaded,
    431: errors.HeadersTooLarge,
    502: errors.Unreachable,
    503: errors.Unavailable,
    504: errors.Unreachable,
}


# What errors have as attributes, by the names of the wire.
_ATTRIBUTES = {
    "queue": "queue",
    "left": "left",
    "maxSize": "max_size",
    "differs": "differs",
    "index": "index",
    "reason": "reason",
}


def error_of(answer: Answer) -> errors.QueenError:
    """Return the error of a refused request, as the server would have raised it."""
    try:
        details = _object.decode(answer.body)
    except msgspec.DecodeError:
        details = {}
    kind = _BY_CODE.get(str(details.get("code"))) or _BY_STATUS.get(
        answer.status, errors.QueenError
    )
    message = str(details.get("error") or f"the server answered {answer.status}")
    error = _build_error(kind, message, details)
    retry_after = answer.headers.get(b"retry-after", b"")
    if retry_after.isdigit():
        # A date, which HTTP has as well, no server of ours sends.
        error.details[_RETRY_AFTER] = int(retry_after)
    return error


def retry_after_s(error: errors.QueenError) -> float:
    """Return for how long a server has asked to be left alone; 0 when it has not."""
    return float(error.details.get(_RETRY_AFTER, 0))


def error_named(code: str, message: str, details: dict[str, Any]) -> errors.QueenError:
    """Return the error that a server means with a code; `details` is what it says beside it."""
    return _build_error(_BY_CODE.get(code, errors.QueenError), message, details)


def _build_error(
    kind: type[errors.QueenError], message: str, details: dict[str, Any]
) -> errors.QueenError:
    error = kind.__new__(kind)
    errors.QueenError.__init__(error, message)
    error.details = details
    known = details
    if isinstance(error, errors.InvalidItem):
        known = {**_item_of(error, details), **details}
    for name, attribute in _ATTRIBUTES.items():
        if name in known:
            setattr(error, attribute, known[name])
    return error


def _item_of(error: errors.InvalidItem, details: dict[str, Any]) -> dict[str, Any]:
    """Return index and reason of the item that an error is about: the first one with its code."""
    items = details.get("items")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("code", error.code) == error.code:
            return {name: item[name] for name in ("index", "reason") if name in item}
    return errors.InvalidItem.parts_of(error.message)


def decode_answer(decoder: msgspec.json.Decoder[T], answer: Answer) -> T:
    """Return an answer decoded; one that cannot be decoded is not from a Queen."""
    try:
        return decoder.decode(answer.body)
    except msgspec.DecodeError as error:
        raise errors.Unreachable(f"the answer is not one of Queen's: {error}") from None


def is_worth_repeating(error: errors.QueenError) -> bool:
    """Whether the same request may succeed a little later."""
    return bool(error.details.get("retryable", error.retryable))

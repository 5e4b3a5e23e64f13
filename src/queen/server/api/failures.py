"""How errors look on the wire: one table from class to status."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from queen import errors
from queen.server.protocol.http import JSON_HEADERS, Response

T = TypeVar("T")

# What a decoder raises for a body that a client may send.
UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

STATUS: dict[type[errors.QueenError], int] = {
    errors.QueenError: 500,
    errors.BadRequest: 400,
    errors.InvalidItem: 400,
    errors.ItemNotFound: 404,
    errors.InvalidFrame: 400,
    errors.PayloadTooLarge: 413,
    errors.HeadersTooLarge: 431,
    errors.RequestTimeout: 408,
    errors.UnsupportedMedia: 415,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.LeaseLost: 409,
    errors.Conflict: 409,
    errors.StreamDiffers: 409,
    errors.HistoryGone: 410,
    errors.JobFailed: 500,
    errors.NoResult: 404,
    errors.PipelineFailed: 500,
    errors.NoJava: 500,
    errors.MissingExtra: 500,
    errors.Overloaded: 429,
    errors.QueueFull: 429,
    errors.SpoolFull: 507,
    errors.Unavailable: 503,
    errors.OutcomeUnknown: 503,
    errors.SpoolFailed: 503,
    errors.Unreachable: 503,
    errors.HandlerTimeout: 500,
    errors.EncryptionUnavailable: 503,
    errors.Unreadable: 503,
    errors.Contended: 503,
    errors.InMaintenance: 503,
    errors.StartupError: 500,
    errors.WeakDurability: 500,
    errors.EmbeddedFailed: 500,
}


def failure(error: errors.QueenError, **more: Any) -> Response:
    """Return the answer for an error; `more` are fields beside it."""
    headers = JSON_HEADERS
    if error.retryable:
        headers = (*headers, ("retry-after", "1"))
    if isinstance(error, errors.Unauthenticated):
        headers = (*headers, ("www-authenticate", "Bearer"))
    body = details_of(error) | more
    return Response(STATUS[type(error)], msgspec.json.encode(body), headers)


def details_of(error: errors.QueenError) -> dict[str, Any]:
    """Return everything that a client is told of an error."""
    body = {"error": error.message, "code": error.code, "retryable": error.retryable}
    if isinstance(error, errors.OutcomeUnknown):
        body["outcome"] = "unknown"
    if isinstance(error, errors.QueueFull):
        body |= {"queue": error.queue, "maxSize": error.max_size, "left": error.left}
    if isinstance(error, errors.Unreadable):
        body |= {"partitionId": error.partition, "offset": error.offset}
    if isinstance(error, errors.InvalidItem):
        body |= {"index": error.index, "reason": error.reason}
    if isinstance(error, errors.StreamDiffers):
        body["differs"] = error.differs
    return body


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return a request's body, or raise what is wrong with it."""
    if not body:
        raise errors.BadRequest("Empty request body")
    try:
        return decoder.decode(body)
    except UNDECODABLE as error:
        raise bad_json(error) from None


def bad_json(error: Exception) -> errors.BadRequest:
    """Return our error for a body that does not decode. Msgspec names the place, not the data."""
    if isinstance(error, RecursionError):
        return errors.BadRequest("Invalid JSON: nested too deeply")
    return errors.BadRequest(f"Invalid JSON: {error}")

"""What is refused before anything is sent, with the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

from queen.errors import BadRequest

# Who has what nobody has, on a server that does not know entries without a consumer.
NOBODY = "queen:released"

_ID = re.compile(r"[0-9]{1,40}(-[0-9]{1,40})?")
_LARGEST = 2**64 - 1
# Of what Redis reads as a number.
_LARGEST_NUMBER = 2**63 - 1
_LONGEST_WAIT_MS = 366 * 24 * 3600 * 1000


def name_bytes(what: str, name: object) -> bytes:
    """Return the name of a stream, group, consumer, key or producer as it is sent."""
    if not isinstance(name, str):
        raise BadRequest(f"{what} must be a text, not {type(name).__name__}")
    if not name:
        raise BadRequest(f"{what} must not be empty")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{what} {name!r} cannot be written as UTF-8") from error


def consumer_bytes(name: object) -> bytes:
    """Return the name of a consumer as it is sent; one name is taken."""
    if name == NOBODY:
        raise BadRequest(f"consumer {NOBODY!r} stands for nobody; choose another name")
    return name_bytes("consumer", name)


def id_bytes(what: str, text: object) -> bytes:
    """Return an id as it is sent: `<ms>-<seq>`, or `<ms>` alone."""
    if not isinstance(text, str):
        raise BadRequest(f"{what} must be a text like '1700000000000-0', not {text!r}")
    if _ID.fullmatch(text) is None or any(int(part) > _LARGEST for part in text.split("-")):
        raise BadRequest(f"{what} must be like '1700000000000-0', not {text!r}")
    return text.encode()


def ids_bytes(ids: object) -> list[bytes]:
    """Return a list of ids as they are sent."""
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise BadRequest(f"ids must be a list of ids, not {type(ids).__name__}")
    return [id_bytes("id", text) for text in ids]


def start_bytes(text: object) -> bytes:
    """Return after which id a group reads, as it is sent: an id, `0`, or `$`."""
    return b"$" if text == "$" else id_bytes("start_id", text)


def bound_bytes(what: str, text: object) -> bytes:
    """Return an end of a range as it is sent: `-`, `+`, an id, or `(` and an id."""
    if text in ("-", "+"):
        return str(text).encode()
    if isinstance(text, str) and text.startswith("("):
        return b"(" + id_bytes(what, text[1:])
    return id_bytes(what, text)


def whole_number(what: str, number: object, least: int = 0, most: int = _LARGEST_NUMBER) -> int:
    """Return a count, a limit or a length."""
    if not isinstance(number, int) or isinstance(number, bool):
        raise BadRequest(f"{what} must be a whole number, not {number!r}")
    if not least <= number <= most:
        raise BadRequest(f"{what} must be from {least} to {most}, not {number}")
    return number


def duration_ms(what: str, number: object) -> int:
    """Return a number of milliseconds; more than a year is a mistake."""
    return whole_number(what, number, 0, _LONGEST_WAIT_MS)

"""What may be called what.

Names travel into URLs, logs and terminals, so they hold printable characters only: no
control characters, no invisible or direction-changing ones, no lone surrogates. They are
data everywhere and never part of an SQL text, a channel name or a file path.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

DEFAULT_PARTITION = "Default"
QUEUE_MODE_GROUP = "__QUEUE_MODE__"
MAX_NAME_BYTES = 255
MAX_TRANSACTION_ID_BYTES = 255

# Characters that no name has: controls, invisible and direction-changing ones, private use, lone
# surrogates, and all spaces but the ordinary one. The list is fixed, so that Python, Java and
# PostgreSQL agree whatever tables of Unicode they have; characters yet to be assigned are taken.
# The same list is in `reason_against_name.sql`.
REFUSED_CHARACTERS: tuple[tuple[int, int], ...] = (
    (0x0, 0x1F),
    (0x7F, 0xA0),
    (0xAD, 0xAD),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x1680, 0x1680),
    (0x180E, 0x180E),
    (0x2000, 0x200F),
    (0x2028, 0x202F),
    (0x205F, 0x2064),
    (0x2066, 0x206F),
    (0x3000, 0x3000),
    (0xD800, 0xF8FF),
    (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x13438),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001),
    (0xE0020, 0xE007F),
    (0xF0000, 0x10FFFF),
)

_REFUSED = re.compile(
    "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in REFUSED_CHARACTERS) + "]"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


# The same few names come with every request.
@lru_cache(maxsize=65536)
def reason_against_name(kind: str, name: str) -> str | None:
    """Return why `name` cannot name a `kind`, or None.

    >>> reason_against_name("queue", "orders")
    >>> reason_against_name("queue", "")
    'queue name is empty'
    """
    if not name:
        return f"{kind} name is empty"
    # Everything printable is taken, and most names are.
    if not name.isprintable() and _REFUSED.search(name):
        return f"{kind} name has a character that is not printable"
    if len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES:
        return f"{kind} name is longer than {MAX_NAME_BYTES} bytes"
    return None


def reason_against_transaction_id(transaction_id: str) -> str | None:
    """Return why a transaction id cannot be taken, or None."""
    if not transaction_id:
        return "transactionId is empty"
    try:
        size = len(transaction_id.encode())
    except UnicodeEncodeError:
        return "transactionId has a NUL character or a lone surrogate"
    if size > MAX_TRANSACTION_ID_BYTES:
        return f"transactionId is longer than {MAX_TRANSACTION_ID_BYTES} bytes"
    if "\x00" in transaction_id:
        return "transactionId has a NUL character or a lone surrogate"
    return None


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def labels_of(queue: str) -> tuple[str, str]:
    """Return namespace and task of a queue that a push creates, taken from its name.

    >>> labels_of("shop.orders.new")
    ('shop', 'orders')
    """
    parts = queue.split(".")
    return parts[0], parts[1] if len(parts) > 1 else ""


# ---- patterns of names ----


def matches_pattern(pattern: str, name: str) -> bool:
    """Whether a pattern stands for a name: `*` for any characters, or none, and `?` for one.

    >>> matches_pattern("orders-*", "orders-de"), matches_pattern("orders-?", "orders-de")
    (True, False)
    >>> matches_pattern("a[b]*", "a[b]c"), matches_pattern("a[b]*", "abc")
    (True, False)
    """
    # A bracket is no pattern here.
    return fnmatchcase(name, pattern.replace("[", "[[]"))


def like_of(pattern: str) -> str:
    r"""Return the pattern as SQL's `like` takes it.

    >>> like_of("50%_*?")
    '50\\%\\_%_'
    """
    parts = {"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"}
    return "".join(parts.get(letter, letter) for letter in pattern)

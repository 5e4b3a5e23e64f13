"""What may be called what.

Names travel into URLs, logs and terminals, so they hold printable characters only: no
control characters, no invisible or direction-changing ones, no lone surrogates. They are
data everywhere and never part of an SQL text, a channel name or a file path.
"""

from __future__ import annotations

import re
from functools import lru_cache

DEFAULT_PARTITION = "Default"
QUEUE_MODE_GROUP = "__QUEUE_MODE__"
MAX_NAME_BYTES = 255
MAX_TRANSACTION_ID_BYTES = 255

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
    if not name.isprintable():
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

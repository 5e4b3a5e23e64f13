"""Times as requests give them."""

from __future__ import annotations

from datetime import UTC, datetime

from queen.errors import BadRequest


def parse_time(name: str, text: str) -> datetime:
    """Return an instant from ISO-8601 text; without a zone it is UTC."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadRequest(f"{name} is not an ISO-8601 time: {text!r}") from None

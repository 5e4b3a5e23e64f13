"""How loud a failure is: what fails because the database is away was told by the breaker."""

from __future__ import annotations

import logging

from queen.errors import QueenError, Unavailable


def level_of(error: QueenError) -> int:
    """Return the level at which a loop that will try again logs an error."""
    is_outage = isinstance(error, Unavailable) and error.is_outage
    return logging.DEBUG if is_outage else logging.WARNING

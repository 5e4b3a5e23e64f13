"""How many requests a caller may send."""

from __future__ import annotations

from typing import cast

import pytest

from queen.errors import Overloaded
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import ClientConnection, Request
from queen.server.protocol.rates import Rates


def request_of(subject: str) -> Request:
    caller = Caller(subject, Role.WRITE)
    # Who has a subject is not told apart by the connection it comes on.
    return Request("GET", "/", "", {}, b"", cast("ClientConnection", None), caller=caller)


def test_a_caller_has_two_seconds_of_its_rate_and_gets_it_back() -> None:
    now = 100.0
    rates = Rates(10, lambda: now)
    for _ in range(20):
        rates.admit(request_of("a"))
    with pytest.raises(Overloaded, match="10 requests a second"):
        rates.admit(request_of("a"))
    # Nobody else is touched by it.
    rates.admit(request_of("b"))
    now += 0.5
    for _ in range(5):
        rates.admit(request_of("a"))
    with pytest.raises(Overloaded):
        rates.admit(request_of("a"))

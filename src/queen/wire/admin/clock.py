"""The clock of a test server on the wire."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

# Thirty years: enough for every test, and nothing overflows.
MAX_ADVANCE_S = 1e9


class AdvanceRequest(msgspec.Struct):
    """How much time is to pass, and for which queue; without one, for all."""

    seconds: Annotated[float, Meta(ge=0, le=MAX_ADVANCE_S)]
    queue: str | None = None


class Advanced(msgspec.Struct):
    success: bool
    seconds: float
    # How many queues time has passed for.
    queues: int

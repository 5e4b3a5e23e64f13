"""What consumers of queues and of streams are told in the same words.

Every setter returns a new builder and leaves the one it was called on as it was.
"""

from __future__ import annotations

import copy
from datetime import datetime
from typing import Any, TypeVar

from queen.client.camel_case import EitherSpelling
from queen.client.transport.wire_format import instant

Self = TypeVar("Self", bound="Consuming")


class Consuming(EitherSpelling):
    """The settings that do not ask what is consumed."""

    _renews: bool = True
    _mode: str | None = None
    _from: str | None = None
    _into: Any = None

    def _with(self: Self, **changes: Any) -> Self:
        changed = copy.copy(self)
        for name, value in changes.items():
            setattr(changed, f"_{name}", value)
        return changed

    def renew_lease(self: Self, wanted: bool = True) -> Self:
        """Prolong leases at half their time while a handler works (the default)."""
        return self._with(renews=wanted)

    def subscription_mode(self: Self, mode: str) -> Self:
        """Where a new group starts: `all` or `new`."""
        return self._with(mode=mode)

    def subscription_from(self: Self, start: str | datetime) -> Self:
        """Where a new group starts: `now`, or a time."""
        return self._with(**{"from": instant(start)})

    def into(self: Self, kind: Any) -> Self:
        """Decode payloads to a type; `message.data` is then of it."""
        return self._with(into=kind)

"""What consumers of queues and of streams are told in the same words.

Every setter returns a new builder and leaves the one it was called on as it was.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from queen.client.camel_case import EitherSpelling
from queen.client.durations import Seconds
from queen.client.queues.handler_rules import ErrorKinds, HandlerRules
from queen.client.transport.wire_format import instant

Self = TypeVar("Self", bound="Consuming")


class Consuming(EitherSpelling):
    """The settings that do not ask what is consumed."""

    _renews: bool = True
    _mode: str | None = None
    _from: str | None = None
    _into: Any = None
    _rules: HandlerRules = HandlerRules()

    def _with(self: Self, **changes: Any) -> Self:
        # As `copy.copy` does it, and much quicker: a builder is made for nearly every push.
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
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

    def retry_on(self: Self, *kinds: type[BaseException]) -> Self:
        """Errors of a handler that are retried even if `give_up_on` names them, too."""
        return self._with(rules=self._rules.changed(retry_on=kinds))

    def give_up_on(self: Self, *kinds: type[BaseException]) -> Self:
        """Errors of a handler that no retry would mend: what fails with one of them is set aside at
        once, with the error. Any other error is an ordinary failure."""
        return self._with(rules=self._rules.changed(give_up_on=kinds))

    def handler_timeout(self: Self, duration: Seconds) -> Self:
        """Fail what a handler has not done after so long, with `HandlerTimeout`. An async handler
        is cancelled. A thread cannot be: its worker takes nothing new until it ends."""
        return self._with(rules=self._rules.changed(timeout=duration))

    def _with_rules(
        self: Self,
        retry_on: ErrorKinds | None,
        give_up_on: ErrorKinds | None,
        timeout: Seconds | None,
    ) -> Self:
        if retry_on is None and give_up_on is None and timeout is None:
            return self
        return self._with(rules=self._rules.changed(retry_on, give_up_on, timeout))

    def into(self: Self, kind: Any) -> Self:
        """Decode payloads to a type; `message.data` is then of it."""
        return self._with(into=kind)

"""What a consumer is told about its handler: which errors it retries, and how long it may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queen.client.durations import Seconds, seconds_of
from queen.errors import BadRequest

ErrorKinds = type[BaseException] | tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True)
class HandlerRules:
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout_s: float | None = None

    def gives_up(self, error: object) -> bool:
        """Whether what failed with an error is not tried again. What is to be retried is, even if
        it is of a kind that is given up: `give_up_on=Exception, retry_on=ConnectionError`."""
        return isinstance(error, self.give_up_on) and not isinstance(error, self.retry_on)

    def changed(
        self,
        retry_on: ErrorKinds | None = None,
        give_up_on: ErrorKinds | None = None,
        timeout: Seconds | None = None,
    ) -> HandlerRules:
        """Return rules that differ in what is told."""
        return HandlerRules(
            self.retry_on if retry_on is None else _kinds("retry_on", retry_on),
            self.give_up_on if give_up_on is None else _kinds("give_up_on", give_up_on),
            self.timeout_s if timeout is None else _timeout_s(timeout),
        )


def _kinds(verb: str, told: Any) -> tuple[type[BaseException], ...]:
    kinds = told if isinstance(told, tuple) else (told,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise BadRequest(f"{verb}: {kind!r} is no class of exceptions")
    return kinds


def _timeout_s(told: Seconds) -> float:
    seconds = seconds_of(told)
    if not seconds > 0:
        raise BadRequest(f"handler_timeout: {told!r} is no time to run for")
    return seconds

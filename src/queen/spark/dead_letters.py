"""Messages that a pipeline sets aside as dead letters: found by the source, or by an expression.

To set a message aside twice is to do it once, so a task that is repeated does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from queen.spark.broker import Broker

_AT_ONCE = 1000


class DeadLetter(NamedTuple):
    """A message, by its id, and why it was set aside."""

    id: str
    error: str


def set_aside(broker: Broker, pipeline: str, letters: Sequence[DeadLetter]) -> None:
    """Make dead letters of messages for the group of a pipeline."""
    path = f"/api/v1/pipelines/{quote(pipeline, safe='')}/dead-letters"
    for first in range(0, len(letters), _AT_ONCE):
        rows = [letter._asdict() for letter in letters[first : first + _AT_ONCE]]
        broker.ask("POST", path, {"messages": rows})

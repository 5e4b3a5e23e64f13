"""Whether something is told at once, on a machine that other tests keep busy.

What is told comes within milliseconds, unless the machine pauses. What is not told comes when
somebody looks by himself, as they all do every second or so: after any time up to that, and
one time in ten within a tenth of it. No single time tells the two apart. Many do: tries go on
until the quick ones are far more than one in ten, and they never are if nobody is told. On a
machine so busy that nothing is quick, they go on until they take far less than half of the time
between two looks on average, which is what they take if nobody is told.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from statistics import fmean
from types import TracebackType

_MOST = 60
# So many more quick tries than a third of the slow ones. Of what is not told, one in a hundred
# gets there; of what is told, everything does if no more than half of the tries meet a pause.
_LEAD = 3
# From so many tries on their mean is looked at: it is this far from one half, in units of the
# deviation of a mean of times of any length, once in a thousand times.
_SOME, _FAR = 20, 3.1 / math.sqrt(12)


class Stopwatch:
    """Measures what is done inside it."""

    def __init__(self, number: int) -> None:
        # Which try it is, for names that each try has for itself.
        self.number = number
        self.took_s = -1.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.took_s = time.monotonic() - self._started


def tries(looks_every_s: float, after_s: float = 0) -> Iterator[Stopwatch]:
    """Yield a stopwatch for one try after the other, until it is clear that they are told.

    `after_s` is how long each of them takes at least.
    """
    took: list[float] = []
    quick = slow = 0
    while len(took) < _MOST:
        stopwatch = Stopwatch(len(took))
        yield stopwatch
        assert stopwatch.took_s >= after_s - 0.02, "nothing was measured, or it came too soon"
        took.append(round(stopwatch.took_s, 3))
        if took[-1] - after_s < looks_every_s / 10:
            quick += 1
        else:
            slow += 1
        if quick - slow / 3 >= _LEAD or _are_short(
            [(one - after_s) / looks_every_s for one in took]
        ):
            return
    raise AssertionError(f"not told at once: {took}")


def _are_short(parts: list[float]) -> bool:
    """Whether times, as parts of the time between two looks, are shorter than by chance."""
    return len(parts) >= _SOME and fmean(parts) < 0.5 - _FAR / math.sqrt(len(parts))

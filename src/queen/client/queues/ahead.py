"""How many messages a consumer takes ahead of a handler that gets fewer at a time.

One message, or one batch, for each request would make the round trip the limit. So a consumer takes
what its handler is done with in a moment: much of a quick one, no more than it gets at once of one
that takes longer. What it holds is leased and comes from few partitions, of which nobody else could
be given the next message meanwhile; what a handler does not come to is given back.
"""

from __future__ import annotations

# As much is taken as was handled within this time before.
_AHEAD_S = 0.25
_MOST = 500


class Ahead:
    """Begins with what a handler gets at once, and learns from how long that takes."""

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._most = max(least, _MOST // least * least)
        self.size = least

    def note(self, messages: int, took_s: float) -> None:
        """Messages were handled, one after the other, in this time."""
        fits = int(messages * _AHEAD_S / max(took_s, 1e-6))
        # Twice as many at most: a few quick ones say little of the next.
        size = max(self._least, min(fits, 2 * self.size, self._most))
        self.size = size // self._least * self._least

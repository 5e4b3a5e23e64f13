"""The watchdog: says so when the event loop stands still.

Everything a server does runs in one loop, one step at a time. A step that takes long holds up
every request, and nothing that runs in the loop can tell while it lasts. So the loop leaves a
mark a few times a second, and a thread of its own looks at the mark. When it is old, the
thread writes what the loop is at: names of functions, and never what they work on.

The loop itself counts the stalls and says how long each was, from the gap between two marks.
That holds too for what stops all threads at once, where nobody could look.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from types import FrameType

_log = logging.getLogger(__name__)

# The loop has stood still when it has not turned for so long.
STALL_S = 1.0
_BEAT_S = 0.25
_MOST_FRAMES = 40
# A thread that cannot write its log must not hold up the end of the server.
_JOIN_S = 1.0


class Watchdog:
    def __init__(self, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._beat_at = 0.0
        self._stop = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        # For whoever watches: how often the loop stood still, and for how long in all.
        self.stalls = 0
        self.stalled_s = 0.0

    def start(self) -> None:
        """Watch the loop that this is called in."""
        self._beat_at = time.monotonic()
        self._beat(asyncio.get_running_loop())
        self._thread = threading.Thread(
            target=self._watch, args=(threading.get_ident(),), name="queen-watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        gap_s, self._beat_at = now - self._beat_at, now
        if gap_s >= self._stall_s:
            self.stalls += 1
            self.stalled_s += gap_s
            _log.warning("the event loop turns again; it stood still for %.1f s", gap_s)
        self._timer = loop.call_later(_BEAT_S, self._beat, loop)

    def _watch(self, watched: int) -> None:
        told_at = 0.0
        while not self._stop.wait(_BEAT_S):
            beat_at = self._beat_at
            gap_s = time.monotonic() - beat_at
            if gap_s >= self._stall_s and beat_at != told_at:
                told_at = beat_at
                _log.warning(
                    "the event loop has not turned for %.1f s; it is in %s",
                    gap_s,
                    _functions(sys._current_frames().get(watched)),
                )


def _functions(frame: FrameType | None) -> str:
    """Name the functions that are under way, the innermost first."""
    names: list[str] = []
    while frame is not None and len(names) < _MOST_FRAMES:
        module = frame.f_globals.get("__name__", "?")
        names.append(f"{module}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    return " < ".join(names) or "no function"

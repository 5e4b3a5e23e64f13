"""Which tests go to the same worker when there are several.

A worker takes one test after the other from what is left, so none is idle while another has
much to do. Some tests stay together: they start something that is not worth starting twice,
a JVM, the processes of the original clients, or a log of five million messages.

The mark `xdist_group` would say the same, but is not heard with the pytest that is pinned here.
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling

_TOGETHER = ("tests/spark/", "tests/originals/", "tests/acceptance/test_scale.py")


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one worker as a whole."""
        return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

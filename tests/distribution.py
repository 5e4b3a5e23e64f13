"""Which tests go to the same worker when there are several.

A worker takes one test after the other from what is left, so none is idle while another has
much to do. Some tests stay together: they share something that is not worth making twice,
a cluster, the processes of the original clients, a log of five million messages, a type check.
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling

_SPARK = "tests/spark/"
# They need no session of Spark, or start their own.
_APART = (
    "tests/spark/test_pipeline_commands.py::test_sigterm",
    "tests/spark/test_wheel_java.py",
)
_TOGETHER = (
    "tests/acceptance/test_scale.py",
    "tests/client/test_typing.py",
    "tests/contract/test_metrics.py",
    "tests/examples/test_examples.py::test_an_example_of_streams",
    "tests/integration/test_embedded.py",
    "tests/originals/",
    "tests/security/",
    "tests/storage/test_staging.py",
    "tests/storage/test_statements.py",
    "tests/testing/",
)


def turn(nodeid: str, is_slow: bool) -> int:
    """When a test is begun, the lowest first: what takes long must not be left for the end."""
    if nodeid.startswith(_SPARK):
        return 0
    return 1 if is_slow else 2


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one worker as a whole."""
        if nodeid.startswith(_APART):
            return nodeid
        if nodeid.startswith(_SPARK):
            # A worker keeps its JVM from file to file, so whoever is free takes the next one.
            return nodeid.partition("::")[0]
        return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

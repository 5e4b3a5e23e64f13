"""Which tests go to the same worker when there are several.

A worker takes one test after the other from what is left, so none is idle while another has
much to do. Some tests stay together: they share something that is not worth making twice,
a JVM, the processes of the original clients, a log of five million messages, a type check.
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling

# They need no session of Spark, or start their own.
_APART = (
    "tests/spark/test_cluster.py",
    "tests/spark/test_pipeline_commands.py::test_sigterm",
    "tests/spark/test_wheel_java.py",
)
# All tests of Spark on one worker would last longer than everything else.
_JVMS = (
    (
        "tests/spark/test_examples.py",
        "tests/spark/test_nexmark.py",
        "tests/spark/test_pages.py",
    ),
    (
        "tests/spark/test_exact_windows.py",
        "tests/spark/test_outer_joins.py",
        "tests/spark/test_pipeline_commands.py",
        "tests/spark/test_pipelines.py",
    ),
)
_TOGETHER = (
    "tests/acceptance/test_scale.py",
    "tests/client/test_typing.py",
    "tests/contract/test_metrics.py",
    "tests/examples/test_examples.py::test_an_example_of_streams",
    "tests/integration/test_embedded.py",
    "tests/originals/",
    "tests/security/",
    "tests/spark/",
    "tests/storage/test_staging.py",
    "tests/storage/test_statements.py",
    "tests/testing/",
)


def turn(nodeid: str, is_slow: bool) -> int:
    """When a test is begun, the lowest first: what takes long must not be left for the end."""
    if nodeid.startswith("tests/spark/"):
        return 0
    return 1 if is_slow else 2


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one worker as a whole."""
        if nodeid.startswith(_APART):
            return nodeid
        for number, theirs in enumerate(_JVMS):
            if nodeid.startswith(theirs):
                return f"JVM {number}"
        return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

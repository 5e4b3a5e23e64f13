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
_ANOTHER_JVM = (
    "tests/spark/test_examples.py",
    "tests/spark/test_nexmark.py",
    "tests/spark/test_pages.py",
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


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one worker as a whole."""
        if nodeid.startswith(_APART):
            return nodeid
        if nodeid.startswith(_ANOTHER_JVM):
            return "another JVM"
        return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

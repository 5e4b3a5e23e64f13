"""Which tests go to the same worker when there are several.

A worker takes one test after the other from what is left, so none is idle while another has
much to do. Some tests stay together: they share something that is not worth making twice,
a cluster, the processes of the original clients, a log of five million messages, a type check.

A session of Spark takes ten seconds of a processor to start, and as many again until it is
warm. Two workers have one, and take no other tests while there are any that need it. The others
do all the rest, much of which waits while Spark computes.
"""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

_SPARK = "tests/spark/"
_SPARK_WORKERS = ("gw0", "gw1")
# They need no session of Spark, or start their own.
_APART = (
    "tests/spark/test_cluster.py",
    "tests/spark/test_pipeline_commands.py::test_sigterm",
    "tests/spark/test_wheel_java.py",
)
# Of those that need it, the ones that take longest.
_LONGEST = (
    "tests/spark/test_random_definitions.py",
    "tests/spark/test_failures.py",
    "tests/spark/test_kills.py",
    "tests/spark/test_nexmark.py",
    "tests/spark/test_examples.py",
    "tests/spark/test_in_time.py",
)
_TOGETHER = (
    "tests/acceptance/test_scale.py",
    "tests/client/test_typing.py",
    "tests/contract/test_metrics.py",
    "tests/examples/test_examples.py::test_an_example_of_streams",
    "tests/install/test_readme.py",
    "tests/install/test_wheel.py",
    "tests/integration/test_embedded.py",
    "tests/originals/",
    "tests/security/",
    "tests/spark/test_cluster.py",
    "tests/storage/test_staging.py",
    "tests/storage/test_statements.py",
    "tests/testing/",
)


def turn(nodeid: str, is_slow: bool) -> int:
    """When a test is begun, the lowest first: what takes long must not be left for the end."""
    if nodeid.startswith((*_APART, *_LONGEST)):
        return 0
    if nodeid.startswith((_SPARK, *_TOGETHER)):
        return 1
    return 2 if is_slow else 3


class Distribution(LoadScopeScheduling):  # type: ignore[misc]
    def __init__(self, config: pytest.Config, log: Producer) -> None:
        # What has many tests does not always take long: the order is that of `turn`.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        """Return the name of what is given to one worker as a whole."""
        if _needs_session(nodeid):
            # A worker keeps its JVM from file to file, so whoever is free takes the next one.
            return nodeid.partition("::")[0]
        return next((each for each in _TOGETHER if nodeid.startswith(each)), nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next unit of its kind, or of the other if there is none."""
        has_session = node.gateway.id in _SPARK_WORKERS
        wanted = (each for each in self.workqueue if _needs_session(each) == has_session)
        if (scope := next(wanted, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def _needs_session(name: str) -> bool:
    """Whether a test, or a unit of tests, needs the session of Spark that workers share."""
    return name.startswith(_SPARK) and not name.startswith(_APART)

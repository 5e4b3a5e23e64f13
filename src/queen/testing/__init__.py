"""What tests of your own consumers need: a real broker, a clock, and questions to ask of queues.

Nothing is simulated. The broker is `queen serve` with a PostgreSQL of its own in a temporary
folder, so what passes here is what happens in production.
"""

from queen.testing.clock import Clock, SyncClock
from queen.testing.expect import Expectation, SyncExpectation, expect
from queen.testing.process import RunningServer, server
from queen.testing.tasks import eager, run_jobs

__all__ = [
    "Clock",
    "Expectation",
    "RunningServer",
    "SyncClock",
    "SyncExpectation",
    "eager",
    "expect",
    "run_jobs",
    "server",
]

"""How a run is doing: Spark tells us, we tell the broker, and it answers whether to stop.

Spark calls the listener after each micro-batch. A thread of ours tells the broker every two
seconds, whether or not there was a batch: silence means that the run is lost.

What Spark tells is read as one JSON text. PySpark's own way asks the JVM for each field, in
hundreds of calls, and for some it looks through all of Spark's archives: a fifth of the samples
of a profiler of the JVM, in runs of small batches.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from queen.client.streams.pipeline import pipeline_path
from queen.errors import NotFound, QueenError
from queen.spark.pipelines.writing import OBSERVED
from queen.wire.pipelines import Progress

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from queen.spark.broker import Broker
    from queen.spark.pipelines.batch_spans import BatchSpans

INTERVAL_S = 2.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_ERROR = 2000
# What the messages of a side are counted as, by the compiler.
_ROWS_OF = "rows_of_"
_TRACEBACK = "Traceback (most recent call last):"
# What Spark puts around the reason, and the reason itself when it has a name.
_WRAPPED = re.compile(r"^([\w.$]+: )?\[STREAM_FAILED\] .*? terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+.*$")
_CONDITION = re.compile(r"\[[A-Z][A-Z_.]{4,}\] ")


class StateOperator(msgspec.Struct, rename="camel"):
    """What Spark says of one operator that keeps state."""

    num_rows_total: int = 0
    memory_used_bytes: int = 0
    num_rows_dropped_by_watermark: int = 0


class Source(msgspec.Struct, rename="camel"):
    """What Spark says of one source; the offsets of ours are objects with `sealed`."""

    start_offset: Any = None
    end_offset: Any = None
    latest_offset: Any = None

    def is_ours(self) -> bool:
        offsets = self.end_offset, self.latest_offset
        return all(isinstance(offset, dict) and "sealed" in offset for offset in offsets)

    def left(self) -> dict[str, tuple[int, int]]:
        """Return the messages and bytes that are left, of the queues of which some are."""
        behind = self.latest_offset.get("behind", {})
        amounts = {queue: (left["messages"], left["bytes"]) for queue, left in behind.items()}
        return {queue: amount for queue, amount in amounts.items() if amount[0]}

    def span_us(self) -> tuple[int, int]:
        """Return from when to when a batch has read."""
        start = self.start_offset["sealed"] if isinstance(self.start_offset, dict) else 0
        return start, self.end_offset["sealed"]

    def gap_us(self) -> int:
        """Return how far it is behind; when nothing was written there is nothing to catch up."""
        return self.latest_offset["sealed"] - self.end_offset["sealed"] if self.left() else 0


class MicroBatch(msgspec.Struct, rename="camel"):
    """What Spark says of one micro-batch, as far as it is passed on."""

    batch_id: int = 0
    timestamp: str = ""
    num_input_rows: int = 0
    input_rows_per_second: float | None = None
    processed_rows_per_second: float | None = None
    duration_ms: dict[str, int] = {}
    event_time: dict[str, str] = {}
    state_operators: list[StateOperator] = []
    sources: list[Source] = []
    observed_metrics: dict[str, dict[str, Any]] = {}

    @property
    def rows_read(self) -> int:
        """How many messages it has read. Of a function nothing is read twice, and Spark's own
        count is right."""
        observed = self.observed_metrics.items()
        read = [int(row["rows"]) for name, row in observed if name.startswith(_ROWS_OF)]
        return sum(read) if read else self.num_input_rows

    @property
    def share_read(self) -> float:
        """How many of Spark's rows are messages: it counts the markers of time that a source adds,
        too, and a row once for each time that it is read. Its rates are of all of them."""
        return self.rows_read / self.num_input_rows if self.num_input_rows else 1.0


class _JvmListener(JStreamingQueryListener):
    """What the JVM calls; it asks for the text of a batch, and only for those of its query."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(tally)
        self._tally = tally

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        progress = jevent.progress()
        if self._tally.is_mine(progress.runId().toString()):
            self._tally.add(msgspec.json.decode(progress.json(), type=MicroBatch))

    def onQueryIdle(self, jevent: Any) -> None:  # noqa: N802
        """Nothing has changed."""


class Tally(StreamingQueryListener):
    """Adds up what one query says of itself."""

    def __init__(
        self,
        name: str,
        run_id: str,
        fingerprint: str,
        checkpoint: str,
        on_end: Callable[[str | None], None],
        spans: BatchSpans,
    ) -> None:
        self._name = name
        self._on_end = on_end
        self._spans = spans
        self._query_run_id: str | None = None
        # Events come in their order, a little later than what they tell of.
        self.has_heard_all = threading.Event()
        self.progress = Progress(
            run_id=run_id,
            state="starting",
            fingerprint=fingerprint,
            host=socket.gethostname(),
            checkpoint=checkpoint,
        )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        # No two queries of a name run at once in a session.
        if self._query_run_id is None and event.name == self._name:
            self._query_run_id = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Spark's name. `_JvmListener` hears of it in our stead."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Spark's name. Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        if self.is_mine(str(event.runId)):
            self.has_heard_all.set()
            self._on_end(event.exception)

    @cached_property
    def _jlistener(self) -> Any:
        """PySpark's name for what `addListener` gives to the JVM."""
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(_JvmListener(self))

    def forget(self) -> None:
        """Let go of the JVM's listener, and of the run; after `removeListener`.

        The JVM's holds ours, and ours the JVM's: nobody could tell that neither is needed, and
        with them the query and its plans would stay for as long as the session does.
        """
        self.__dict__.pop("_jlistener", None)
        self._on_end = lambda _: None

    def is_mine(self, query_run_id: str) -> bool:
        return query_run_id == self._query_run_id

    def add(self, batch: MicroBatch) -> None:
        """Count one micro-batch."""
        self._spans.add(batch)
        now = self.progress
        written = batch.observed_metrics.get(OBSERVED)
        counts = [row for name, row in batch.observed_metrics.items() if name != OBSERVED]
        now.batches += 1
        now.input_rows += batch.rows_read
        now.late_rows += sum(int(row.get("late", 0)) + int(row.get("untimed", 0)) for row in counts)
        now.output_rows += 0 if written is None else int(written["results"])
        now.failed_rows += 0 if written is None else int(written.get("failed", 0))
        now.failed_rows += sum(int(row.get("failed", 0)) for row in counts)
        now.input_rows_per_second = (batch.input_rows_per_second or 0.0) * batch.share_read
        now.processed_rows_per_second = (batch.processed_rows_per_second or 0.0) * batch.share_read
        now.batch_ms = batch.duration_ms.get("triggerExecution", 0)
        _note_places(now, [source for source in batch.sources if source.is_ours()])
        operators = batch.state_operators
        now.state_rows = sum(operator.num_rows_total for operator in operators)
        now.state_bytes = sum(operator.memory_used_bytes for operator in operators)
        now.dropped_rows += sum(operator.num_rows_dropped_by_watermark for operator in operators)
        now.watermark = _watermark(batch.event_time.get("watermark")) or now.watermark
        now.state = "running"

    def note_end(self, error: str | None) -> None:
        self.progress.state = "stopped" if error is None else "failed"
        self.progress.error = error


class Reporter:
    """Tells the broker, and listens to what it answers."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        tally: Tally,
        spans: BatchSpans,
        stop: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._path = pipeline_path(name, "progress")
        self._tally = tally
        self._spans = spans
        self._stop = stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"queen-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Report the end."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._report()

    def _run(self) -> None:
        is_asked = False
        while not self._over.is_set():
            # It reports until it has ended: the batch it is in may take long.
            if self._report() and not is_asked:
                is_asked = True
                self._stop()
            self._over.wait(INTERVAL_S)

    def _report(self) -> bool:
        """Tell the broker how it is; return whether the run is to stop."""
        self._spans.make()
        # A broker that is away for a while is the source's problem, and the sink's.
        with contextlib.suppress(QueenError):
            try:
                progress = msgspec.to_builtins(self._tally.progress)
                return bool(self._broker.ask("POST", self._path, progress)["stop"])
            except NotFound:
                # The pipeline was deleted under the run: nobody wants it any more.
                return True
        return False


def last_line(error: BaseException | str) -> str:
    """Return what an error of Spark is about: in pages of Java there is one line of ours.

    >>> last_line("boom\\n\\tat org.apache.x\\nqueen.errors.NotFound: Queue 'x' not found\\n")
    "Queue 'x' not found"
    >>> last_line("[STREAM_FAILED] Query [id = 1] terminated with exception: No room. SQLSTATE: X")
    'No room.'
    >>> last_line("Traceback (most recent call last):\\n  File x\\nOSError: full\\n SQLSTATE: X")
    'OSError: full'
    """
    raised = _line_raised(str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    texts = [line for line in lines if not line.startswith(("at ", "Caused by", "..."))]
    ours = [line for line in texts if line.startswith(("queen.errors.", "ValueError:"))]
    if ours:
        return (ours[-1].partition(": ")[2] or ours[-1])[:_MAX_ERROR]
    if raised is not None:
        return raised[:_MAX_ERROR]
    line = texts[0] if texts else type(error).__name__
    line = _STATE.sub("", _WRAPPED.sub("", line))
    condition = _CONDITION.search(line)
    return (line if condition is None else line[condition.start() :])[:_MAX_ERROR]


def _line_raised(text: str) -> str | None:
    """Return the line in which the last traceback of Python says what was raised."""
    inside = text.rpartition(_TRACEBACK)[2] if _TRACEBACK in text else ""
    lines = inside.splitlines()
    return next((line for line in lines if line and not line[0].isspace()), None)


def _note_places(now: Progress, sources: list[Source]) -> None:
    """Note how far a query is and what it has left; a queue that it reads twice counts once."""
    if not sources:
        return
    left: dict[str, tuple[int, int]] = {}
    for source in sources:
        for queue, amount in source.left().items():
            left[queue] = max(left.get(queue, amount), amount)
    now.behind_messages = sum(messages for messages, _ in left.values())
    now.behind_bytes = sum(size for _, size in left.values())
    now.behind_ms = max(source.gap_us() for source in sources) // 1000
    done_until = min(source.end_offset["sealed"] for source in sources)
    now.done_until = _EPOCH + timedelta(microseconds=done_until)


def _watermark(text: str | None) -> datetime | None:
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    # Before the first marker it is 1970.
    return at if at > datetime(1971, 1, 1, tzinfo=UTC) else None

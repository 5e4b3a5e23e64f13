"""Running pipelines live, until they are stopped.

    from queen.spark import run_pipeline
    running = run_pipeline("orders-per-minute", spark)
    running.wait()

A run finds its definition in the broker, claims its checkpoint, compiles one Structured
Streaming query, and reports to the broker while that runs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.errors import PySparkException

from queen.client.streams.pipeline import PATH, pipeline_path
from queen.core.differences import fingerprint
from queen.errors import BadRequest, PipelineFailed
from queen.spark.broker import Broker, BrokerAddress, address_of
from queen.spark.launch.settings import check_classic, pipeline_settings
from queen.spark.pipelines import reading, writing
from queen.spark.pipelines.batch_spans import BatchSpans
from queen.spark.pipelines.checking import check_live, explain_errors
from queen.spark.pipelines.checkpoint import Checkpoint, Note, new_note
from queen.spark.pipelines.checkpoint_lock import CheckpointLock, lock_checkpoint
from queen.spark.pipelines.compiler import (
    PARTITION,
    CompiledPipeline,
    compile_definition,
    sets_aside,
)
from queen.spark.pipelines.narrowing import compile_narrow
from queen.spark.pipelines.progress import Reporter, Tally, last_line
from queen.wire.pipelines import Definition, Progress, decode_definition, plain, reason_against

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from queen.spark.pipelines.functions import Function

_GRACEFUL_S = 60.0
_LOOK_AGAIN_S = 0.02
_LAST_EVENT_S = 10.0
_LONGEST_PAUSE_S = 366 * 24 * 3600


class Options(msgspec.Struct, kw_only=True):
    """How a pipeline is run; what it does is in its definition."""

    url: str | None = None
    token: str | None = None
    # A folder that all machines of the cluster see; one in the home folder, on one machine.
    checkpoint: str | None = None
    # Seconds from the start of one micro-batch to that of the next.
    every: float = 1.0
    # Take what is there now, and end.
    available_now: bool = False
    # earliest, latest or a time, for a new checkpoint; where the group stands, unless given.
    starting: str | None = None
    # Of the database, for results that go to a table.
    table_url: str | None = None
    # Use an old checkpoint although the definition has changed; the results are your affair.
    accept_changes: bool = False
    max_messages_per_trigger: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.every, int | float) or not 0 <= self.every < _LONGEST_PAUSE_S:
            raise BadRequest(f"every: {self.every!r} is not a number of seconds")
        most = self.max_messages_per_trigger
        if most is not None and (not isinstance(most, int) or most < 1):
            raise BadRequest(f"max_messages_per_trigger: {most!r} is not a number from 1 on")

    def address(self) -> BrokerAddress:
        given = {"url": self.url or "", "token": self.token or ""}
        return address_of({name: value for name, value in given.items() if value})

    def broker_options(self) -> dict[str, str]:
        """Return the options by which the source and the sink find the broker."""
        url = {"url": ",".join(self.address().urls)}
        return {**url, "token": self.token} if self.token else url

    def source_options(self) -> dict[str, str]:
        """Return the options of the source."""
        given = {
            "startingTime": self.starting,
            "maxMessagesPerTrigger": self.max_messages_per_trigger,
        }
        return {
            **self.broker_options(),
            **{name: str(value) for name, value in given.items() if value},
        }


def stored_definition(name: str, options: Options) -> Definition:
    """Return what the broker keeps under a name."""
    shown = Broker(options.address()).ask("GET", pipeline_path(name))
    return decode_definition(shown["definition"])


def run_pipeline(name: str, spark: SparkSession, **options: Any) -> Running:
    """Start a pipeline that is stored in the broker."""
    return start_pipeline(stored_definition(name, Options(**options)), spark, Options(**options))


def run_definition(
    definition: Mapping[str, Any] | Definition,
    spark: SparkSession,
    *,
    replace: bool = False,
    **options: Any,
) -> Running:
    """Start a definition, and store it once Spark has nothing against it.

    One that is stored under the name and differs is a `Conflict`, unless `replace` allows it.
    """
    checked, given = checked_definition(definition), Options(**options)
    return start_pipeline(
        checked, spark, given, keep=lambda: store(checked, given, replace=replace)
    )


def checked_definition(definition: Mapping[str, Any] | Definition) -> Definition:
    """Return a definition that can be run, or raise `BadRequest` with what is wrong with it."""
    if not isinstance(definition, Definition):
        try:
            definition = decode_definition(definition)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the definition of the pipeline is wrong: {error}") from None
    reason = reason_against(definition)
    if reason:
        raise BadRequest(reason)
    return definition


def store(definition: Definition, options: Options, *, replace: bool = False) -> None:
    body = {"definition": plain(definition), "replace": replace}
    Broker(options.address()).ask("POST", PATH, body)


def start_pipeline(
    definition: Definition,
    spark: SparkSession,
    options: Options,
    function: Function | None = None,
    *,
    keep: Callable[[], None] | None = None,
) -> Running:
    """Start a live query; returns when it runs. `keep` is called when Spark has checked it."""
    check_classic(spark, "pipelines")
    if definition.kind == "function" and function is None:
        raise BadRequest(
            f"{definition.name!r} is a function in a file, which only that file can do: "
            "queen pipeline run FILE.py"
        )
    folder = options.checkpoint or _default_checkpoint(spark, definition.name)
    with contextlib.ExitStack() as undo:
        lock = lock_checkpoint(spark, folder)
        undo.callback(lock.release)
        checkpoint = Checkpoint(spark, folder)
        with explain_errors(definition, spark), pipeline_settings(spark, definition.time_zone):
            aside = sets_aside(definition, reading.nothing(spark, definition))
        note = checkpoint.note_for(definition, accept=options.accept_changes, aside=aside)
        target = writing.Target(options.broker_options(), note.transaction, options.table_url)
        with explain_errors(definition, spark), pipeline_settings(spark, definition.time_zone):
            compiled = _compile_live(definition, spark, options, function, note)
            check_live(definition, compiled)
            writer = writing.query_writer(definition, compiled, target)
            if keep is not None:
                keep()
            run = Running(spark, definition, options, folder, lock)
            with checkpoint.claim(note) as take_back:
                run.take_back_note = take_back
                run.start(writer)
        undo.pop_all()
        return run


def _compile_live(
    definition: Definition,
    spark: SparkSession,
    options: Options,
    function: Function | None,
    note: Note,
) -> CompiledPipeline:
    """Return the streaming query of a pipeline, not started."""
    if function is None:
        given = options.source_options()
        return compile_narrow(
            definition,
            lambda only: reading.live(spark, definition, given, has_aside=note.aside, only=only),
            lambda frames: compile_definition(
                definition, frames, has_aside=note.aside, has_buckets=note.has_buckets
            ),
            lambda compiled: writing.written(definition, compiled),
        )
    frames = reading.live(spark, definition, options.source_options(), markers=function.markers)
    return function.apply(frames)


def _default_checkpoint(spark: SparkSession, name: str) -> str:
    master = str(spark.sparkContext.master)
    if not master.startswith("local"):
        raise BadRequest(
            f"the pipeline runs on {master}: give a checkpoint that all its machines can see, "
            "such as a folder on a shared disk, HDFS or S3 (--checkpoint, or "
            "run(spark, checkpoint=…))"
        )
    return local_checkpoint(name)


def local_checkpoint(name: str) -> str:
    """Return the folder of a pipeline that runs on this machine and was given none."""
    safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)
    return str(Path.home() / ".queen" / "checkpoints" / f"{safe}-{fingerprint({'name': name})[:6]}")


class Running:
    """A live query of a pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        definition: Definition,
        options: Options,
        folder: str,
        lock: CheckpointLock,
    ) -> None:
        self.definition = definition
        self.checkpoint = folder
        self._spark = spark
        self._lock = lock
        self._options = options
        version, name = fingerprint(plain(definition)), definition.name
        broker = Broker(options.address(), retry_s=0)
        spans = BatchSpans(broker, name, [q for reads in definition.reads for q in reads.queues])
        self._tally = Tally(name, uuid.uuid4().hex, version, folder, self._on_termination, spans)
        self._reporter = Reporter(broker, name, self._tally, spans, self._stop_soon)
        self._is_to_stop = threading.Event()
        # Whoever comes second returns when the end has been told.
        self._ending = threading.RLock()
        self._is_over = False
        # Puts the note of the checkpoint back, for a run that never finished a batch.
        self.take_back_note: Callable[[], None] = lambda: None
        self.query: StreamingQuery

    @property
    def progress(self) -> Progress:
        """What has been done so far."""
        return self._tally.progress

    def start(self, writer: DataStreamWriter) -> None:
        self._spark.streams.addListener(self._tally)
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self._options.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(
                processingTime=f"{round(self._options.every * 1000)} milliseconds"
            )
        try:
            self.query = writer.queryName(self.definition.name).start()
        except BaseException:
            self._stop_listening()
            raise
        self._tally.progress.query_id = str(self.query.id)
        self._tally.progress.ui_url = self._spark.sparkContext.uiWebUrl
        self._reporter.start()

    def _stop_listening(self) -> None:
        self._spark.streams.removeListener(self._tally)
        self._tally.forget()

    def stop(self) -> None:
        """End after the micro-batch that is under way; returns when it has ended.

        It says nothing of a run that had failed before: `wait` does, and `progress.error`.
        """
        self.ask_to_stop()
        with self._ending:
            if self._is_over:
                return
            deadline = time.monotonic() + _GRACEFUL_S
            # A query that is behind begins the next batch at once, and is never seen idle.
            last = self._last_batch()
            while self._is_busy() and self._last_batch() == last and time.monotonic() < deadline:
                time.sleep(_LOOK_AGAIN_S)
            self.query.stop()
            self._end(None)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return true when it has ended, by itself or because somebody wanted it to.

        Raises `PipelineFailed` with the reason when it has failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while deadline is None or time.monotonic() < deadline:
            try:
                over = self.query.awaitTermination(1) if not self._is_to_stop.is_set() else False
            except PySparkException as error:
                if not self._is_to_stop.is_set():
                    raise self._end_failed(error) from error
                # Ctrl-C reaches Spark's processes too. The batch they had is repeated whole.
                over = True
            if self._is_to_stop.is_set() and not over:
                self.stop()
                over = True
            if over:
                self._end(None)
                self._raise_failure()
                return True
        return False

    def _raise_failure(self) -> None:
        """Raise why it has failed, if it has; also to whoever asks after that."""
        if self.progress.state == "failed":
            raise PipelineFailed(f"pipeline {self.definition.name!r} failed: {self.progress.error}")

    def _on_termination(self, error: str | None) -> None:
        """Hear from Spark that the query is over; perhaps nobody waits for that."""
        is_expected = error is None or self._is_to_stop.is_set()
        reason = None if is_expected else last_line(str(error))
        # Spark waits for us here, and must not: the end is told to the broker.
        name = f"queen-end-{self.definition.name}"
        threading.Thread(target=self._end, args=(reason,), name=name, daemon=True).start()

    def _last_batch(self) -> int | None:
        # Not `query.lastProgress`, which asks for all that there is in hundreds of calls.
        last: Any = self.query._jsq.lastProgress()
        return None if last is None else int(last.batchId())

    def _is_busy(self) -> bool:
        return self.query.isActive and bool(self.query.status["isTriggerActive"])

    def ask_to_stop(self) -> None:
        """Let whoever waits for it stop it; returns at once."""
        self._is_to_stop.set()

    def _stop_soon(self) -> None:
        """Stop it, whether or not somebody waits for it; returns at once."""
        name = f"queen-stop-{self.definition.name}"
        threading.Thread(target=self.stop, name=name, daemon=True).start()

    def _end_failed(self, error: PySparkException) -> PipelineFailed:
        reason = last_line(error)
        self._end(reason)
        return PipelineFailed(f"pipeline {self.definition.name!r} failed: {reason}")

    def _end(self, error: str | None) -> None:
        with self._ending:
            if self._is_over:
                return
            self._is_over = True
            self._tally.has_heard_all.wait(_LAST_EVENT_S)
            self._tally.note_end(error)
            if error is not None and not self._tally.progress.batches:
                self.take_back_note()
            # Spark writes nothing there any more: it is the next run's.
            self._lock.release()
            self._stop_listening()
            self._reporter.close()


def plan_of(
    definition: Definition, spark: SparkSession, options: Options, function: Function | None = None
) -> str:
    """Return the plan that Spark makes of a pipeline."""
    with explain_errors(definition, spark), pipeline_settings(spark, definition.time_zone):
        note = new_note(
            definition, aside=sets_aside(definition, reading.nothing(spark, definition))
        )
        compiled = _compile_live(definition, spark, options, function, note)
    # `explain` prints it; this is what it prints.
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.PythonSQLUtils.explainString(compiled.result._jdf.queryExecution(), "simple"))


def results_of(compiled: CompiledPipeline) -> DataFrame:
    """Return results without what only a queue needs to know."""
    return compiled.result.drop(PARTITION)

"""`queen pipeline`: what Spark computes, and how that is going."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.cells import as_age
from queen.cli.complete import pipeline_names
from queen.cli.connection import urls_of, with_queen
from queen.cli.exits import confirm, explain_errors, say
from queen.cli.output import Output, draw
from queen.cli.paging import read_pages
from queen.cli.tables import Column, problem_lines, record_lines, table_lines, terminal_size, wrap
from queen.cli.terminal.printable import printable
from queen.cli.times import parse_optional
from queen.client import Queen
from queen.client.streams.pipeline import PATH, pipeline_path
from queen.errors import PipelineFailed, QueenError
from queen.extras import require

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queen.spark.pipelines.functions import Function
    from queen.spark.pipelines.run import Options, Running
    from queen.wire.pipelines import Definition, Progress

pipeline = typer.Typer(
    help="Run pipelines on Spark, and see how they are doing.", no_args_is_help=True
)

# Who says what is missing, to those who have no Spark.
_WHAT = "what runs on Spark"

_COLUMNS = (
    Column("pipeline", "name"),
    Column("state", "state"),
    Column("behind", "progress.behindMessages", "number"),
    Column("read", "progress.inputRows", "number"),
    Column("written", "progress.outputRows", "number"),
    Column("late", "progress.lateRows", "number"),
    Column("last heard of", "reportedAt", "age"),
    Column("watermark", "progress.watermark", "age"),
    Column("rows/s", "progress.processedRowsPerSecond", "number"),
    Column("batch, ms", "progress.batchMs", "number"),
    Column("reads", "reads"),
    Column("writes", "writes"),
)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", autocompletion=pipeline_names, help="The name of a pipeline."),
]
Runnable = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        autocompletion=pipeline_names,
        help="A stored pipeline, or a file with a @pipeline: enrich.py[:name].",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(envvar="SPARK_MASTER", help="Where Spark runs; local[*] unless given."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(help="The folder that remembers how far it is; below ~/.queen unless given."),
]
Every = Annotated[float, typer.Option(min=0.05, help="Seconds between two micro-batches.")]
Once = Annotated[bool, typer.Option("--once", help="Take what is there now, and end.")]
Start = Annotated[
    str | None,
    typer.Option("--from", help="Where a new checkpoint starts: earliest, latest or a time."),
]
TableUrl = Annotated[
    str | None,
    typer.Option(envvar="QUEEN_TABLE_URL", help="The database, when results go to a table."),
]
Accept = Annotated[
    bool,
    typer.Option("--accept-changes", help="Use a checkpoint of another definition all the same."),
]
Conf = Annotated[list[str], typer.Option(help="A setting of Spark, key=value; repeatable.")]
LargeState = Annotated[
    bool,
    typer.Option("--large-state", help="Keep state on disk (RocksDB): for more than fits memory."),
]
Restarts = Annotated[
    int,
    typer.Option(min=0, help="How often in a row it is started again when it has failed."),
]
Archive = Annotated[
    str | None, typer.Option("--package", help="The archive of `queen pipeline package`.")
]


@pipeline.command("list")
def list_pipelines(
    limit: cli.AllOr = None,
    offset: cli.Skip = 0,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Show the pipelines and how each is doing."""

    async def work(queen: Queen) -> list[dict[str, Any]]:
        async def read(size: int, start: int) -> Any:
            answer = await queen.request("GET", f"{PATH}?limit={size}&offset={start}")
            return [_with_all_numbers(row) for row in answer["pipelines"]]

        return await read_pages(read, limit, offset)

    Output(as_json).rows(with_queen(url, token, work), _COLUMNS)


@pipeline.command()
def status(
    name: Name, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Show one pipeline: problems first, then its progress."""
    state, output = _with_all_numbers(_fetch_state(name, url, token)), Output(as_json)
    if not output.is_table:
        output.lines([state])
        return
    draw(problem_lines(_problems(state)))
    about = {key: state[key] for key in ("name", "state", "reads", "writes", "version")}
    draw(record_lines({**about, "reportedAt": state["reportedAt"], **(state["progress"] or {})}))


@pipeline.command()
def explain(
    name: Runnable,
    plan: Annotated[bool, typer.Option("--plan", help="Show Spark's plan too.")] = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Say in sentences what a pipeline does, in the order in which it does it."""
    from queen.spark.pipelines.explain import explain_definition

    definition, function = _load_pipeline(name, url, token)
    sentences, output = explain_definition(definition), Output(as_json)
    plan_lines = _plan_of(definition, function, url, token) if plan else []
    if output.is_table:
        # Of a plan, the columns stand below each other: it is not wrapped.
        for text in [*_wrapped(sentences), *plan_lines]:
            output.text(text)
    else:
        output.lines([{"name": definition.name, "does": sentences + plan_lines}])


@pipeline.command()
def run(
    name: Runnable,
    master: Master = None,
    checkpoint: Checkpoint = None,
    every: Every = 1.0,
    once: Once = False,
    start: Start = None,
    table_url: TableUrl = None,
    accept_changes: Accept = False,
    conf: Conf = [],  # noqa: B006 - Typer copies it
    large_state: LargeState = False,
    restarts: Restarts = 3,
    package: Archive = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Run a pipeline until it is stopped: by Ctrl-C, SIGTERM or `queen pipeline stop`.

    When it fails it is started again, and goes on from its checkpoint.
    """
    definition, function = _load_pipeline(name, url, token)
    options = _options(
        url,
        token,
        checkpoint=checkpoint,
        every=every,
        available_now=once,
        starting=start,
        table_url=table_url,
        accept_changes=accept_changes,
    )
    conf = [*(_ROCKSDB if large_state else ()), *conf]
    with (
        _checkpoint_held(definition.name, master, checkpoint),
        _spark(definition.name, master, conf, package) as spark,
        explain_errors(urls_of(url)),
    ):
        from queen.spark.pipelines.run import start_pipeline, store

        if function is not None:
            store(definition, options, replace=True)
        running = _run_with_restarts(
            lambda: start_pipeline(definition, spark, options, function),
            f"{definition.name} runs on {spark.sparkContext.master}",
            restarts,
            options,
        )
    Output(as_json).record({"name": definition.name, **_plain(running.progress)})


@pipeline.command()
def stop(
    name: Name, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Ask the run of a pipeline, wherever it is, to end after its micro-batch."""
    answer = with_queen(url, token, lambda queen: queen.post(pipeline_path(name, "stop"), {}))
    Output(as_json).record(answer)
    if not answer["running"]:
        say(f"nobody seems to run {name}: `queen pipeline status {name}` says when it was last")


@pipeline.command()
def delete(
    name: Name,
    yes: cli.Yes = False,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Forget a pipeline; its queues and its checkpoint stay. A run of it ends."""
    confirm(yes, f"Forget the pipeline {name}?")
    answer = with_queen(url, token, lambda queen: queen.request("DELETE", pipeline_path(name)))
    Output(as_json).record(answer)


@pipeline.command()
def backfill(
    name: Name,
    since: Annotated[
        str | None,
        typer.Option("--from", help="Of what was written since; ISO-8601 or 2h, 7d ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="Before this time; up to now unless given.")
    ] = None,
    in_time: Annotated[
        bool,
        typer.Option(
            "--in-time",
            help="Take each message as written when it happened: for history that was pushed "
            "later. --from and --to are then of what happened.",
        ),
    ] = False,
    into: Annotated[str | None, typer.Option(help="Write results to this queue.")] = None,
    files: Annotated[str | None, typer.Option(help="Write results to this new folder.")] = None,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    package: Archive = None,
    url: cli.Url = None,
    token: cli.Token = None,
    as_json: cli.Json = False,
) -> None:
    """Compute what a pipeline gives for a stretch of history; print it unless told where to.

    The rows are those that a live run that began at --from has given when time has reached --to.
    With --in-time they are those of windows that began at --from or later and closed by --to, as if
    each message had been pushed the moment it happened.
    """
    begin, end = parse_optional("--from", since), parse_optional("--to", until)
    if into is not None and files is not None:
        raise typer.BadParameter("results go to a queue or to a folder, not both")
    for option, target in (("--into", into), ("--files", files)):
        if target is not None and not target.strip():
            raise typer.BadParameter(f"{target!r} names nothing", param_hint=option)
    if begin is not None and end is not None and begin >= end:
        raise typer.BadParameter(f"{since!r} is not before --to {until!r}", param_hint="--from")
    definition, _ = _load_pipeline(name, url, token)
    options = _options(url, token)
    with _spark(f"{name} backfill", master, conf, package) as spark, explain_errors(urls_of(url)):
        from queen.spark.pipelines import backfill as history

        rows = history.backfill(definition, spark, options, begin, end, in_time=in_time)
        if into is None and files is None:
            Output(as_json=True).lines(history.plain_rows(rows))
            return
        count = history.deliver(definition, rows, options, into, files)
    Output(as_json).record({"name": name, "rows": count, "to": into or files})


@pipeline.command()
def package(
    to: Annotated[Path, typer.Option("--to", help="The archive to write.")] = Path(
        "queen-spark.tar.gz"
    ),
    file: Annotated[list[Path], typer.Option(help="A file to put in; repeatable.")] = [],  # noqa: B006
    as_json: cli.Json = False,
) -> None:
    """Put Queen and what it needs into an archive that Spark brings to every executor."""
    from queen.spark.launch.package import write_package

    with explain_errors():
        names = write_package(to, file)
    Output(as_json).record({"archive": str(to), "holds": names, "bytes": to.stat().st_size})
    say(f"run with: queen pipeline run NAME --master spark://HOST:7077 --package {to}")


# ---- inside ----


@contextmanager
def _checkpoint_held(name: str, master: str | None, checkpoint: str | None) -> Iterator[None]:
    """Find out now, not when Spark has started, that another run works in the checkpoint, and let
    others find out that this one does."""
    with ExitStack() as held:
        with explain_errors():
            require("spark", _WHAT)
            from queen.spark.pipelines.checkpoint_lock import check_is_free, hold_for_start
            from queen.spark.pipelines.run import local_checkpoint

            if (master or "local").startswith("local"):
                held.enter_context(hold_for_start(checkpoint or local_checkpoint(name)))
            elif checkpoint is not None:
                check_is_free(checkpoint)
        yield


def _fetch_state(name: str, url: str | None, token: str | None) -> Any:
    return with_queen(url, token, lambda queen: queen.request("GET", pipeline_path(name)))


def _load_pipeline(
    name: str, url: str | None, token: str | None
) -> tuple[Definition, Function | None]:
    """Return the pipeline that is meant: one in a file, or one in the broker."""
    from queen.wire.pipelines import decode_definition

    if not name.partition(":")[0].endswith(".py"):
        return decode_definition(_fetch_state(name, url, token)["definition"]), None
    with explain_errors():
        require("spark", _WHAT)
        from queen.spark.pipelines.functions import load

        function = load(name)
    return function.definition, function


def _options(url: str | None, token: str | None, **more: Any) -> Options:
    with explain_errors():
        require("spark", _WHAT)
    from queen.spark.pipelines.run import Options

    return Options(url=",".join(urls_of(url)), token=token, **more)


@contextmanager
def _spark(
    name: str, master: str | None, conf: list[str], archive: str | None
) -> Iterator[SparkSession]:
    """A session for as long as a command runs; one that was there before stays."""
    settings = {**_memory_for(master), **dict(_setting(setting) for setting in conf)}
    with explain_errors():
        require("spark", _WHAT)
        from pyspark import SparkContext

        import queen.spark

        is_new = SparkContext._active_spark_context is None
        if archive is not None:
            from queen.spark.launch.package import settings_for_archive

            settings = {**settings_for_archive(archive), **settings}
        spark = queen.spark.session(name, master, **settings)
    try:
        yield spark
    finally:
        if is_new:
            spark.stop()


def _memory_for(master: str | None) -> dict[str, str]:
    """Return how much memory a JVM on this machine may use: a quarter of it, 1 to 8 GB."""
    if not (master or "local").startswith("local"):
        return {}
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"spark.driver.memory": f"{min(max(total // 4, _GIB), 8 * _GIB) // _MIB}m"}


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not key=value", param_hint="--conf")
    return key, value


@contextmanager
def _stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop()) for number in numbers}
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


def _run_with_restarts(
    start: Callable[[], Running], greeting: str, restarts: int, options: Options
) -> Running:
    """Run it to its end; start it again when it fails, so many times without progress between.

    A broker that is away is waited for, however long that takes: it is no failure of the pipeline.
    """
    failures = 0
    running: Running | None = None
    while True:
        try:
            running = start()
            say(f"{greeting}; it remembers how far it is in {running.checkpoint}")
            with _stop_on_signals(running.ask_to_stop):
                _watch(running)
            return running
        except QueenError as error:
            if running is not None and _has_waited_for_broker(options):
                continue
            if running is None or not isinstance(error, PipelineFailed):
                raise
            failures = 1 if running.progress.batches else failures + 1
            if failures > restarts:
                raise
            pause_s = min(2**failures, _LONGEST_PAUSE_S)
            say(f"{error.message}; it is started again in {pause_s} s")
            time.sleep(pause_s)


def _has_waited_for_broker(options: Options) -> bool:
    """Wait until the broker answers; false when it does so at once."""
    from queen.spark.broker import Broker

    broker, has_waited = Broker(options.address(), retry_s=0), False
    while True:
        try:
            broker.call("GET", "/health")
            return has_waited
        except QueenError as error:
            if not error.retryable:
                return has_waited
            if not has_waited:
                say("the broker does not answer; the pipeline goes on when it does")
            has_waited = True
            time.sleep(_LOOK_AGAIN_S)


def _watch(running: Running) -> None:
    """Wait for the end; on a terminal, show how it is going."""
    if not sys.stderr.isatty():
        running.wait()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:
        while not running.wait(1):
            lines = table_lines([_plain(running.progress)], _LIVE)
            live.update(Text.from_ansi("\n".join(lines)), refresh=True)


_LONGEST_PAUSE_S = 60
_LOOK_AGAIN_S = 1.0
_MIB, _GIB = 1024**2, 1024**3
_ROCKSDB = (
    "spark.sql.streaming.stateStore.providerClass="
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled=true",
)
_LIVE = (
    Column("state", "state"),
    Column("batches", "batches", "number"),
    Column("read", "inputRows", "number"),
    Column("written", "outputRows", "number"),
    Column("late", "lateRows", "number"),
    Column("failed", "failedRows", "number"),
    Column("behind", "behindMessages", "number"),
    Column("rows/s", "processedRowsPerSecond", "number"),
    Column("batch, ms", "batchMs", "number"),
    Column("state rows", "stateRows", "number"),
    Column("watermark", "watermark", "age"),
)


def _plain(progress: Progress) -> dict[str, Any]:
    from queen.wire.pipelines import plain

    fields: dict[str, Any] = plain(progress, whole=True)
    return fields


def _with_all_numbers(state: dict[str, Any]) -> dict[str, Any]:
    """Return a pipeline with what the broker leaves out of its progress: that nothing is late says
    something. One that has never run has no progress."""
    from queen.wire.pipelines import Progress

    if state["progress"] is None:
        return state
    zeros = _plain(Progress(run_id="", state="starting"))
    return {**state, "progress": {**zeros, **state["progress"]}}


def _problems(state: dict[str, Any]) -> list[str]:
    progress = state["progress"] or {}
    problems = []
    if state["state"] == "failed":
        problems.append(f"the last run has failed: {progress.get('error')}")
    if state["state"] == "lost":
        problems.append(
            f"nothing was heard of it for {as_age(state['reportedAt'])}: was it killed?"
        )
    if progress.get("lateRows") and state["lateTo"] is None:
        problems.append(f"{progress['lateRows']:,} late messages were left out: keep them: late_to")
    if progress.get("failedRows"):
        where = state["definition"].get("errorsTo") or f"`queen dlq list --group {state['name']}`"
        problems.append(
            f"{progress['failedRows']:,} messages could not be computed with and are set aside: "
            f"{where}"
        )
    if progress.get("droppedRows"):
        problems.append(
            f"Spark has dropped {progress['droppedRows']:,} rows: was the group moved back? "
            "Start with a new --checkpoint"
        )
    if progress.get("fingerprint") not in (None, state["fingerprint"]):
        problems.append("the run does what an older definition says: start it again")
    return problems


def _wrapped(sentences: list[str]) -> Iterator[str]:
    """Yield sentences as they fit the terminal, each beginning at its left."""
    width, _ = terminal_size()
    for sentence in sentences:
        first, *others = wrap(printable(sentence), width - 2, fold=False)
        yield first
        yield from (f"  {text}" for text in others)


def _plan_of(
    definition: Definition, function: Function | None, url: str | None, token: str | None
) -> list[str]:
    options = _options(url, token)
    with _spark("explain", None, [], None) as spark, explain_errors(urls_of(url)):
        from queen.spark.pipelines.run import plan_of

        return plan_of(definition, spark, options, function).splitlines()

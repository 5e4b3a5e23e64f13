"""`python -m benchmarks.tasks`: jobs a second, beside Celery and Procrastinate.

    python -m benchmarks.tasks [--jobs 20000] [--rounds 3] [--concurrency 16] [--alone]

Each system is given the same jobs, and then one worker. The rate is that from the first job that
runs, each of which writes a byte to a file, until all are settled: acked by the broker, and with
their results stored where they are kept. That a function was called is not enough: what is taken
ahead runs before it is acked. Celery runs with two processes on Valkey, which syncs its file every
second and then always; Procrastinate on the PostgreSQL of the broker, in a database of its own. The
rounds take turns. Both are installed, pinned, into an environment of their own under `.bench/`;
they are no part of this project.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import redis
from rich.console import Console
from rich.table import Table

from benchmarks.broker import Broker
from benchmarks.jobs import BenchError
from benchmarks.report import machine
from benchmarks.streams_servers import valkey

_ROOT = Path(__file__).resolve().parent.parent
_FOLDER = _ROOT / ".bench"
_PATIENCE_S = 300.0
_LOOK_S = 0.01

_QUEEN_APP = """
    import asyncio, os, sys, time
    from queen import Queen
    done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND)
    queen = Queen()

    partitions, keep_s = int(os.environ["PARTITIONS"]), float(os.environ["KEEP"])

    @queen.queue(os.environ["QUEUE"]).task(
        name="add", partitions=partitions, keep_result_s=keep_s
    )
    async def add(a: int, b: int) -> int:
        os.write(done, b".")
        return a + b

    async def push(count):
        async with queen:
            for start in range(0, count, 500):
                some = range(start, min(start + 500, count))
                await asyncio.gather(*(add.delay(n, 1) for n in some))

    if __name__ == "__main__":
        began = time.perf_counter()
        asyncio.run(push(int(sys.argv[1])))
        print(time.perf_counter() - began)
"""
_CELERY_APP = """
    import os, sys, time
    from celery import Celery
    done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND)
    app = Celery("app", broker=os.environ["REDIS"], backend=os.environ["REDIS"])
    app.conf.worker_hijack_root_logger = False

    @app.task(name="add", ignore_result=float(os.environ["KEEP"]) == 0)
    def add(a, b):
        os.write(done, b".")
        return a + b

    if __name__ == "__main__":
        began = time.perf_counter()
        for n in range(int(sys.argv[1])):
            add.delay(n, 1)
        print(time.perf_counter() - began)
"""
_PROCRASTINATE_APP = """
    import asyncio, os, sys, time
    from procrastinate import App, PsycopgConnector
    done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND)
    app = App(connector=PsycopgConnector(conninfo=os.environ["DSN"]))

    @app.task(name="add")
    async def add(a, b):
        os.write(done, b".")
        return a + b

    async def push(count):
        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            began = time.perf_counter()
            for start in range(0, count, 500):
                some = range(start, min(start + 500, count))
                await add.batch_defer_async(*({"a": n, "b": 1} for n in some))
            print(time.perf_counter() - began)

    async def work(concurrency):
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)

    if __name__ == "__main__":
        asyncio.run(push(int(sys.argv[1])) if len(sys.argv) == 2 else work(int(sys.argv[2])))
"""


_ACKED = """
select coalesce(sum(c.committed), 0) from queen.cursors c
join queen.groups g on g.id = c.group_id join queen.queues q on q.id = g.queue_id
where q.name = $1 and g.name = 'workers'
"""
_RESULTS = "select count(*) from queen.job_results where queue = $1"
_SUCCEEDED = "select count(*) from procrastinate_jobs where status = 'succeeded'"


class System(NamedTuple):
    """How jobs are pushed, and what runs them."""

    name: str
    app: str
    python: str
    env: dict[str, str]
    worker: list[str]
    # How many jobs are settled.
    settled: Callable[[], int]


class Rates(NamedTuple):
    pushed: float
    done: float


def python_with_peers() -> str:
    """Return the interpreter that has Celery and Procrastinate, made if it must be."""
    home, pins = _FOLDER / "task-peers", _ROOT / "requirements" / "bench-tasks.txt"
    python, made_from = home / "bin" / "python", home / "made-from.txt"
    wanted = f"{sys.version}\n{pins.read_text()}"
    if not made_from.exists() or made_from.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(pins)]
        subprocess.run([str(python), *install], check=True)
        made_from.write_text(wanted)
    return str(python)


def measure(system: System, folder: Path, jobs: int) -> Rates:
    """Push all jobs, then run them with one worker."""
    done = folder / "done"
    done.write_bytes(b"")
    (folder / "app.py").write_text(textwrap.dedent(system.app))
    env = {**os.environ, **system.env, "DONE": str(done)}
    command = [system.python, "app.py", str(jobs)]
    ran = subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE)
    pushed = jobs / float(ran.stdout)
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(system.worker, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        return Rates(pushed, _watch(done, jobs, worker, system.settled))
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _watch(
    done: Path, jobs: int, worker: subprocess.Popen[bytes], settled: Callable[[], int]
) -> float:
    """Return how many jobs a second are settled, from when the first one runs."""
    deadline, first, count = time.monotonic() + _PATIENCE_S, 0.0, 0
    while count < jobs:
        time.sleep(_LOOK_S)
        ran = done.stat().st_size
        if ran and not first:
            first = time.perf_counter() - _LOOK_S / 2
        # Asked only when it can be all of them: asking takes its share.
        count = settled() if ran >= jobs else 0
        if worker.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the worker ran {ran} and settled {count} of {jobs} jobs")
    return jobs / (time.perf_counter() - first)


@contextmanager
def systems(
    folder: Path, concurrency: int, *, is_alone: bool
) -> Iterator[list[Callable[[], System]]]:
    """Start what the systems need; each function returns one, ready for another round."""
    with ExitStack() as running:
        broker = running.enter_context(Broker(_FOLDER))
        url = f"http://127.0.0.1:{broker.port}"
        bin_ = Path(sys.executable).parent
        rounds = 0

        def queen(name: str, keep: str, *more: str) -> Callable[[], System]:
            def make() -> System:
                nonlocal rounds
                rounds += 1
                env = {"QUEEN_URL": url, "QUEUE": f"jobs-{rounds}", "KEEP": keep}
                env["PARTITIONS"] = "1" if "--shared" in more else "16"
                worker = [str(bin_ / "queen"), "worker", "app:queen", "-c", str(concurrency)]
                worker += ["--log-level", "warning", *more]
                settled = partial(_settled_by_queen, broker, env["QUEUE"], keep != "0")
                return System(name, _QUEEN_APP, sys.executable, env, worker, settled)

            return make

        made = [
            queen("queen, results kept", "86400"),
            queen("queen, no results", "0"),
            queen("queen, shared, results kept", "86400", "--shared"),
            queen("queen, shared, no results", "0", "--shared"),
        ]
        if not is_alone:
            made += _peers(running, broker, folder, concurrency)
        yield made


def _peers(
    running: ExitStack, broker: Broker, folder: Path, concurrency: int
) -> list[Callable[[], System]]:
    python = python_with_peers()
    made: list[Callable[[], System]] = []
    for policy in ("everysec", "always"):
        home = folder / policy
        home.mkdir()
        port = running.enter_context(valkey(home, policy)).port
        for keep, name in (("1", "results kept"), ("0", "no results")):
            env = {"REDIS": f"redis://127.0.0.1:{port}/0", "KEEP": keep}
            worker = [python, "-m", "celery", "-A", "app", "worker", "-c", "2", "-l", "WARNING"]
            made.append(partial(_celery, f"celery, {policy}, {name}", python, env, worker, port))
    address = broker.postgres

    def procrastinate() -> System:
        name = f"peer_{time.time_ns()}"
        asyncio.run(_create_database(broker, name))
        dsn = f"host={address.host} port={address.port} user=postgres dbname={name}"
        worker = [python, "app.py", "work", str(concurrency)]
        settled = partial(_count, broker, name, _SUCCEEDED)
        return System("procrastinate", _PROCRASTINATE_APP, python, {"DSN": dsn}, worker, settled)

    return [*made, procrastinate]


def _celery(name: str, python: str, env: dict[str, str], worker: list[str], port: int) -> System:
    store = redis.Redis(port=port)
    store.flushall()

    def settled() -> int:
        if env["KEEP"] == "1":
            return sum(1 for _ in store.scan_iter("celery-task-meta-*", count=10_000))
        is_empty = not store.llen("celery") and not store.hlen("unacked")
        return sys.maxsize if is_empty else 0

    return System(name, _CELERY_APP, python, env, worker, settled)


def _settled_by_queen(broker: Broker, queue: str, are_kept: bool) -> int:
    acked = _count(broker, "queen", _ACKED, queue)
    return min(acked, _count(broker, "queen", _RESULTS, queue)) if are_kept else acked


def _count(broker: Broker, database: str, statement: str, *arguments: str) -> int:
    async def ask() -> int:
        connection = await broker.postgres.connect(database)
        try:
            return int(await connection.fetchval(statement, *arguments))
        finally:
            await connection.close()

    return asyncio.run(ask())


async def _create_database(broker: Broker, name: str) -> None:
    connection = await broker.postgres.connect("postgres")
    try:
        await connection.execute(f"create database {name}")
    finally:
        await connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tasks", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--alone", action="store_true", help="without Celery and Procrastinate")
    arguments = parser.parse_args()
    console = Console()
    rates: dict[str, list[Rates]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with systems(folder, arguments.concurrency, is_alone=arguments.alone) as made:
            for _ in range(arguments.rounds):
                for make in made:
                    system = make()
                    rates.setdefault(system.name, []).append(
                        measure(system, folder, arguments.jobs)
                    )
                    last = rates[system.name][-1]
                    console.print(f"{system.name:<32} {last.pushed:>9,.0f} {last.done:>9,.0f} /s")
    table = Table(title=f"{arguments.jobs:,} jobs, one worker")
    for column in ("system", "pushed /s", "done /s", "rounds"):
        table.add_column(column, justify="left" if column in ("system", "rounds") else "right")
    for system_name, some in rates.items():
        medians = [statistics.median(column) for column in zip(*some, strict=True)]
        each = " ".join(f"{rate.done:,.0f}" for rate in some)
        table.add_row(system_name, f"{medians[0]:,.0f}", f"{medians[1]:,.0f}", each)
    console.print(table)
    console.print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())

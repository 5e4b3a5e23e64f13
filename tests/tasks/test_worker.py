"""`queen worker` as a process: it starts, stops, starts again, and is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from queen import Queen
from queen.client.tasks import Job
from queen.testing import Clock
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import until, until_async

QUEEN = str(Path(sys.executable).parent / "queen")

_APP = """
    import os, threading, time
    from pathlib import Path
    from queen import Queen, SyncQueen

    here = Path(__file__).parent
    queen = {client}()
    jobs = queen.queue(os.environ["APP_QUEUE"])

    @jobs.task(name="say")
    async def say(word: str) -> str:
        return word + "{mark}"

    @jobs.task(name="pid", partitions=1)
    def pid() -> int:
        return os.getpid()

    @jobs.task(name="hold", partitions=64)
    def hold(name: str, seconds: float) -> str:
        (here / name).write_text(str(os.getpid()))
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while time.monotonic() < deadline and not (here / "go").exists():
            pause.wait(0.01)
        return name
"""


class Program:
    """A worker, the folder of its application, and what it said."""

    def __init__(self, folder: Path, process: subprocess.Popen[str], log: Path) -> None:
        self.folder = folder
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for(self, name: str) -> None:
        """Wait until a job has begun."""
        until((self.folder / name).exists)


Start = Callable[..., Program]


def write_app(folder: Path, client: str = "Queen", mark: str = "!") -> None:
    text = textwrap.dedent(_APP).replace("{client}", client).replace("{mark}", mark)
    (folder / "app.py").write_text(text)


@pytest.fixture
def start(first_server: ServerProcess, queue: str, tmp_path: Path) -> Iterator[Start]:
    """Start workers of an application; those that are left are killed with the test."""
    started = 0
    with ExitStack() as opened:

        def begin(*arguments: str, app: str = "app", write: bool = True, **how: str) -> Program:
            nonlocal started
            started += 1
            if write:
                write_app(tmp_path, **how)
            log = tmp_path / f"log-{started}"
            kept = {key: value for key, value in os.environ.items() if "QUEEN" not in key}
            env = {**kept, "QUEEN_URL": first_server.url, "APP_QUEUE": queue}
            with log.open("w") as errors:
                process = subprocess.Popen(
                    [QUEEN, "worker", app, *arguments],
                    cwd=tmp_path,
                    env=env,
                    stdout=errors,
                    stderr=errors,
                    text=True,
                )
            opened.enter_context(bound(process))
            opened.callback(process.kill)
            return Program(tmp_path, process, log)

        yield begin


async def push(queen: Queen, queue: str, task: str, **arguments: Any) -> Job[Any]:
    """Push a job as anybody could: its payload is plain JSON."""
    call = {"task": task, "arguments": arguments}
    (pushed,) = await queen.queue(queue).partition(arguments.get("name", "0")).push(call)
    return queen.queue(queue).partition(arguments.get("name", "0")).job(pushed.transaction_id)


@pytest.mark.parametrize("client", ["Queen", "SyncQueen"])
async def test_a_worker_runs_jobs_and_stops_when_it_is_told(
    queen: Queen, queue: str, start: Start, client: str
) -> None:
    program = start(client=client, app="app:queen")
    job = await push(queen, queue, "say", word="hello")
    assert await job.result(60) == "hello!"
    holding = await push(queen, queue, "hold", name="long", seconds=60)
    program.wait_for("long")
    program.signal(signal.SIGTERM)
    until(lambda: "stopping: 1 jobs are running" in program.said)
    # It finishes what it is at, and takes no more.
    later = await push(queen, queue, "say", word="later")
    (program.folder / "go").touch()
    assert program.wait() == 0
    assert (await holding.status()).state == "done"
    assert (await later.status()).state == "waiting"
    assert f"job {job.id} say done in " in program.said
    assert f"worker of {queue}: 3 tasks, 8 jobs at once" in program.said


async def test_what_takes_too_long_is_given_back_and_a_second_signal_ends_at_once(
    queen: Queen, queue: str, start: Start
) -> None:
    program = start("--grace", "0.2", "-c", "2", "-q", queue)
    jobs = [await push(queen, queue, "hold", name=name, seconds=600) for name in ("a", "b")]
    for name in ("a", "b"):
        program.wait_for(name)
    program.signal(signal.SIGINT)
    assert program.wait() == 1
    assert "2 jobs took more than 0.2 s and were given back" in program.said
    assert [(await job.status()).state for job in jobs] == ["waiting", "waiting"]
    for name in ("a", "b"):
        (program.folder / name).unlink()
    program = start("-q", queue)
    program.wait_for("a")
    program.signal(signal.SIGTERM)
    until(lambda: "stopping" in program.said)
    program.signal(signal.SIGINT)
    assert program.wait() == 130


async def test_the_jobs_of_a_worker_that_was_killed_run_again(
    queen: Queen, queue: str, start: Start, clock: Clock
) -> None:
    """kill -9: nothing was said of its jobs, so they come again when their leases have lapsed."""
    first = start("-c", "4")
    names = [f"job-{n}" for n in range(6)]
    jobs = {name: await push(queen, queue, "hold", name=name, seconds=600) for name in names}
    until(lambda: sum((first.folder / name).exists() for name in names) == 4)
    first.process.kill()
    first.wait()
    second = start("-c", "8", write=False)
    (second.folder / "go").touch()
    await until_async(lambda: is_done_after(clock, queue, list(jobs.values())))
    assert [await job.result(60) for job in jobs.values()] == names
    for name in names:
        assert (second.folder / name).read_text() == str(second.process.pid)


async def is_done_after(clock: Clock, queue: str, jobs: list[Job[Any]]) -> bool:
    """Whether all are done; time passes meanwhile."""
    await clock.advance(301, queue=queue)
    return all([(await job.status(wait_s=1)).state == "done" for job in jobs])


async def test_a_worker_starts_again_when_its_source_changes(
    queen: Queen, queue: str, start: Start
) -> None:
    program = start("--reload")
    assert await (await push(queen, queue, "say", word="a")).result(60) == "a!"
    # What cannot be loaded is waited for.
    (program.folder / "app.py").write_text("def broken(:\n")
    until(lambda: "waiting for a change" in program.said)
    assert "SyntaxError" in program.said
    write_app(program.folder, mark="?")
    assert await (await push(queen, queue, "say", word="b")).result(60) == "b?"
    program.signal(signal.SIGTERM)
    assert program.wait() == 0


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("nothing_here", "'nothing_here' cannot be imported from"),
        ("nothing.here:app", "'nothing.here' cannot be imported from"),
        ("app:jobs", "'jobs' in 'app' is no Queen or SyncQueen"),
        ("app:nobody", "'nobody' in 'app' is no Queen or SyncQueen"),
        ("broken", "'broken' cannot be imported: ZeroDivisionError"),
        ("two", "'two' has no Queen or SyncQueen: name one, as in two:queen"),
        ("empty:queen", "there are no tasks for any queue"),
    ],
)
def test_what_cannot_be_started_says_why(
    start: Start, app: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "two.py").write_text("from queen import Queen\na = Queen()\nb = Queen()\n")
    (tmp_path / "empty.py").write_text("from queen import Queen\nqueen = Queen()\n")
    program = start(app=app)
    assert program.wait() == 2
    assert f"queen: {reason}" in program.said


def test_a_queue_without_tasks_is_refused(start: Start, queue: str) -> None:
    program = start("--queue", "another")
    assert program.wait() == 2
    assert f"there are no tasks for another; queues with tasks are {queue}" in program.said


async def test_a_shared_group_runs_jobs_of_one_partition_side_by_side(
    queen: Queen, queue: str, start: Start
) -> None:
    program = start("--shared", "-c", "4")
    names = [f"job-{n}" for n in range(4)]
    calls = [{"task": "hold", "arguments": {"name": name, "seconds": 60}} for name in names]
    pushed = await queen.queue(queue).push(calls)
    for name in names:
        program.wait_for(name)
    jobs = [queen.queue(queue).job(message.transaction_id) for message in pushed]
    assert {(await job.status()).state for job in jobs} == {"running"}
    (program.folder / "go").touch()
    assert [await job.result(60) for job in jobs] == names
    program.signal(signal.SIGTERM)
    assert program.wait() == 0

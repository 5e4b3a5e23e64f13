"""Server processes that share a port: replaced when they end, and gone with their parent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]

from tests.api import Api
from tests.conftest import ServerProcess
from tests.waiting import PATIENCE_S, until

Start = Callable[..., ServerProcess]


def workers_of(running: ServerProcess) -> list[psutil.Process]:
    """The processes that serve; what Python starts to clean up after them is not one."""
    children = psutil.Process(running.pid).children()
    return [one for one in children if "spawn_main" in " ".join(one.cmdline())]


def worker_numbers(url: str) -> set[int]:
    """Who answers a few connections; a worker that is gone answers none."""
    seen = set()
    for _ in range(8):
        try:
            with closing(Api(url)) as api:
                seen.add(api.call("GET", "/health").json["worker_id"])
        except OSError:
            continue
    return seen


def test_a_worker_that_dies_is_told_and_replaced(
    dsn: str, start_server: Start, tmp_path: Path, queue: str
) -> None:
    log = tmp_path / "log"
    running = start_server("--database-url", dsn, "--workers", "2", log=log)
    first = workers_of(running)
    assert len(first) == 2
    first[0].kill()
    until(lambda: "by signal 9; another takes over" in log.read_text())
    until(lambda: worker_numbers(running.url) == {0, 1})
    assert {one.pid for one in workers_of(running)} != {one.pid for one in first}
    assert running.api().push({"queue": queue, "payload": 1}).status == 201
    assert running.stop() == 0


def test_workers_end_when_their_parent_is_killed(dsn: str, start_server: Start) -> None:
    running = start_server("--database-url", dsn, "--workers", "2")
    orphans = workers_of(running)
    running.kill()
    _, alive = psutil.wait_procs(orphans, timeout=PATIENCE_S)
    assert not alive
    again = start_server("--database-url", dsn, "--workers", "2", port=running.port)
    assert again.stop() == 0

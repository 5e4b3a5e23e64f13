"""The Python of the pages runs, and prints what the pages say.

The ```python blocks of a page are one program, in their order, with `await` at the top level as
in `python -m asyncio`. The lines of its ```text blocks are what it prints. Every page has a
broker of its own, new and empty, as its reader has.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from queen.storage.embedded import EmbeddedPostgres
from tests.conftest import ServerProcess
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "docs/tutorial/first-queue.md",
    "docs/tutorial/first-stream.md",
    "docs/tutorial/first-stream-worker.md",
    "docs/howto/buffering.md",
    "docs/howto/qos0.md",
    "docs/howto/client-spool.md",
    "docs/howto/come-from-celery.md",
    "docs/howto/come-from-kafka.md",
    "docs/howto/come-from-rabbitmq.md",
    "docs/howto/come-from-redis-streams.md",
    "docs/howto/come-from-sqs.md",
    "docs/howto/consumer-groups.md",
    "docs/howto/dead-windows.md",
    "docs/howto/exactly-once-effects.md",
    "docs/howto/exactly-once-results.md",
    "docs/howto/headers-and-tracing.md",
    "docs/howto/job-queue.md",
    "docs/howto/join-two-queues.md",
    "docs/howto/late-and-idle-keys.md",
    "docs/howto/limit-rates.md",
    "docs/howto/replay-a-stream.md",
    "docs/howto/retries-and-dead-letters.md",
    "docs/howto/run-stream-workers.md",
    "docs/howto/several-servers.md",
    "docs/howto/shared-groups.md",
    "docs/howto/transactions.md",
]
# Run in `tests/spark`, where Spark is.
SPARK_PAGES = [
    "docs/tutorial/first-pipeline.md",
    "docs/howto/backfill.md",
    "docs/howto/exactly-once-with-spark.md",
    "docs/howto/join-with-spark.md",
    "docs/howto/pipeline-functions.md",
    "docs/howto/late-data-with-spark.md",
    "docs/howto/load-history.md",
    "docs/howto/read-with-spark.md",
    "docs/howto/spark-submit.md",
    "docs/howto/write-from-spark.md",
]
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVER = re.compile(r"http://queen-\d")
_RUNNER = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

async def main():
    result = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(result):
        await result

asyncio.run(main())
"""


def blocks(page: str) -> tuple[str, list[str]]:
    """Return the program of a page and the lines it prints."""
    found = _BLOCK.findall((ROOT / page).read_text())
    program = "\n".join(text for kind, text in found if kind == "python")
    return program, [line for kind, text in found if kind == "text" for line in text.splitlines()]


@pytest.fixture
def resp_port() -> int:
    """Where clients of Redis find the server, on pages that have such."""
    return free_port()


@pytest.fixture
async def servers(
    postgres: EmbeddedPostgres,
    start_server: Callable[..., ServerProcess],
    page: str,
    resp_port: int,
) -> AsyncIterator[list[ServerProcess]]:
    """As many servers as the page speaks of, of a new database."""
    count = len(set(_SERVER.findall(blocks(page)[0]))) or 1
    name = f"page_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    own = urlunsplit(urlsplit(postgres.dsn)._replace(path=f"/{name}"))
    resp = ("--resp-port", str(resp_port)) if "port=6379" in blocks(page)[0] else ()
    running = [start_server("--database-url", own, *resp) for _ in range(count)]
    yield running
    for one in running:
        one.stop()
    await admin.execute(f"drop database {name} with (force)")
    await admin.close()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_prints_what_it_says(
    page: str, servers: list[ServerProcess], resp_port: int
) -> None:
    program, said = blocks(page)
    assert program
    program = _with_ports(program, servers[0], resp_port)
    for number, server in enumerate(servers, start=1):
        program = program.replace(f"http://queen-{number}:6632", server.url)
    assert run(program, servers[0]) == said


def _with_ports(program: str, server: ServerProcess, resp_port: int) -> str:
    """Return a program that looks for the broker where it is."""
    program = program.replace("port=6379", f"port={resp_port}")
    return program.replace("queen://127.0.0.1:6632", f"queen://127.0.0.1:{server.port}")


def run(program: str, server: ServerProcess) -> list[str]:
    """Run a program that finds the server, and return the lines it prints."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUNNER],
        input=program,
        env={**os.environ, "QUEEN_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_every_page_with_python_is_run() -> None:
    others = {"docs/howto/push-from-sql.md", "docs/howto/test-your-consumer.md", *SPARK_PAGES}
    found = {
        str(path.relative_to(ROOT))
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        if "```python\n" in path.read_text() and path.parent.name not in ("decisions", "reference")
    }
    assert found - others == set(PAGES)

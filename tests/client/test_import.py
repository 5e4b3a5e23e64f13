"""What importing the client costs, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys

# Loaded only by those who run a server, or use Spark.
HEAVY = {
    "asyncpg",
    "cryptography",
    "httptools",
    "jwt",
    "numpy",
    "prometheus_client",
    "psutil",
    "pydantic",
    "pyspark",
    "rich",
    "typer",
    "uvloop",
    "zstandard",
}
OURS = ("queen.server", "queen.service", "queen.storage", "queen.cli.", "queen.spark")

PROGRAM = """
import json, sys, time
began = time.process_time()
import queen
for name in sys.argv[1:]:
    __import__(name)
took = time.process_time() - began
print(json.dumps([took, sorted(sys.modules)]))
"""


def imported(*names: str) -> tuple[float, list[str]]:
    """Import in a fresh process; return the seconds it took and what is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names], capture_output=True, text=True, check=True
    )
    seconds, modules = json.loads(done.stdout)
    return seconds, modules


def test_nothing_of_the_server_is_loaded() -> None:
    _, modules = imported()
    assert "queen" in modules
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert [name for name in modules if name.startswith(OURS)] == []


def test_a_spool_needs_nothing_of_the_server() -> None:
    _, modules = imported("queen.client.spooling.spool")
    assert "queen.spool.folder" in modules
    assert {name.partition(".")[0] for name in modules} & HEAVY == set()
    assert [name for name in modules if name.startswith(OURS)] == []
    assert "queen.spool" not in imported()[1]


def test_it_takes_less_than_a_tenth_of_a_second() -> None:
    # Processor time at its best, so that a busy machine does not count; a slow one has twice
    # as long.
    seconds = min(imported()[0] for _ in range(5))
    print(f"import queen: {seconds * 1000:.0f} ms")
    assert seconds < 0.2

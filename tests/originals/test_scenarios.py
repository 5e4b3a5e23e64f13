"""The clients published for the original broker run unchanged against our server.

Each test runs one scenario of `tests/originals/scenarios` inside an environment that holds
one published version of `queen-mq` and nothing of ours.
"""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.originals.conftest import Play
from tests.originals.environments import VERSIONS
from tests.ports import free_port

_ONE_SERVER = (
    "producing",
    "consuming",
    "settling",
    "transactions",
    "buffering",
    "spooling",
    "tracing",
    "administration",
    "streaming",
    "newer",
)
# Played with more than one server, or with one that does not stay.
_ELSEWHERE = {"streaming.queries_outlast_a_server_that_is_killed"}


def _scenarios() -> list[tuple[str, str]]:
    """Every scenario with every version that has its calls."""
    found = []
    for module in _ONE_SERVER:
        loaded = importlib.import_module(f"tests.originals.scenarios.{module}")
        for name, value in vars(loaded).items():
            own = inspect.iscoroutinefunction(value) and value.__module__ == loaded.__name__
            if own and not name.startswith("_") and f"{module}.{name}" not in _ELSEWHERE:
                versions = getattr(value, "versions", VERSIONS)
                found += [(version, f"{module}.{name}") for version in versions]
    return found


@pytest.mark.parametrize(("original", "scenario"), _scenarios(), indirect=["original"])
def test_scenario(scenario: str, play: Play, server: ServerProcess) -> None:
    play(scenario, server.url)


def test_every_strategy_of_load_balancing(
    play: Play, server: ServerProcess, second_server: ServerProcess
) -> None:
    play("several_servers.every_strategy_works", server.url, second_server.url)


def test_a_dead_address_is_passed_over(play: Play, server: ServerProcess) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    play("several_servers.a_server_that_is_not_there_is_passed_over", server.url, dead)


def test_a_consumer_moves_on_when_its_server_stops(
    play: Play, server: ServerProcess, start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    leaving = start_server("--database-url", dsn)
    scenario = "several_servers.a_server_that_stops_is_left_for_the_other"
    play(scenario, server.url, leaving.url, meanwhile=leaving.stop)


@pytest.mark.parametrize("original", ["0.15.0"], indirect=True)
def test_streaming_queries_outlast_a_server_that_is_killed(
    play: Play, start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    port = free_port()
    running = start_server("--database-url", dsn, port=port)

    def crash() -> None:
        running.kill()
        start_server("--database-url", dsn, port=port)

    play("streaming.queries_outlast_a_server_that_is_killed", running.url, meanwhile=crash)


def test_a_token_is_ignored_without_authentication(play: Play, server: ServerProcess) -> None:
    play("access.a_token_is_ignored_where_none_is_asked_for", server.url)


def test_a_token_opens_what_its_role_may(
    play: Play, start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    guarded = start_server("--database-url", dsn, "--auth", "tokens")
    tokens = [_new_token(dsn, role) for role in ("read-only", "read-write", "admin")]
    play("access.a_bearer_token_opens_what_its_role_may", guarded.url, *tokens)


def _new_token(dsn: str, role: str) -> str:
    queen = str(Path(sys.executable).parent / "queen")
    command = [queen, "token", "create", "--name", "a test", "--role", role]
    made = subprocess.run(
        [*command, "--database-url", dsn], capture_output=True, text=True, check=True
    )
    return made.stdout.strip()

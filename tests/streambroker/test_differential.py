"""Our commands answer as those of Valkey do, except where we mean to differ."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from queen.streambroker.engine import MemoryExecutor
from queen.streambroker.redis_backend import RedisExecutor
from queen.streambroker.replies import Executor
from tests.streambroker.conftest import EXECUTORS
from tests.streambroker.differential import ACCEPTED, Generator, compare

# What is committed each time takes longer.
COMMANDS = {
    "memory_executor": 20_000,
    "durable_executor": 2_500,
    "resp_executor": 2_500,
    "two_servers_executor": 1_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", list(COMMANDS), indirect=True)
async def test_random_commands_give_the_answers_of_valkey(
    oracle: RedisExecutor, executor: Executor, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["executor"]
    seed, commands = random.randrange(10**9), COMMANDS[name]
    differences = await compare(oracle, executor, seed=seed, commands=commands)
    shown = "\n".join(map(str, differences))
    assert not differences, f"--seed {seed} --commands {commands}\n{shown}"


def test_every_executor_is_compared() -> None:
    assert set(EXECUTORS) <= set(COMMANDS)


async def test_a_difference_is_found(oracle: RedisExecutor) -> None:
    """An executor that keeps less than it is told to is found out."""
    differences = await compare(oracle, MemoryExecutor(max_length=3), seed=1, commands=2_000)
    assert differences


def test_all_commands_are_made_up() -> None:
    generator = Generator(1)
    names = Counter(command[0].upper() for _ in range(5_000) for command in generator.unit()[0])
    assert {
        *("XADD", "XTRIM", "XLEN", "XRANGE", "XREVRANGE", "XREAD", "XREADGROUP", "XGROUP"),
        *("XACK", "XPENDING", "XCLAIM", "XAUTOCLAIM", "XINFO", "XDEL", "XSETID"),
    } <= set(names)


def test_accepted_differences_have_a_reason() -> None:
    assert all(accepted.what and accepted.reason.endswith(".") for accepted in ACCEPTED)

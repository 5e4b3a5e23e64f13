"""Play scenarios in the environment of an original client, one after the other.

    python -m tests.originals.run <version>

Each line of the input names a scenario, its queue and the servers; a line of the output says
how it went. Everything else that is printed is the client's own talk.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback

from tests.originals.scene import DONE, FAILED, Scene

_LIMIT_S = 45


async def _play(version: str, scenario: str, queue: str, urls: list[str]) -> None:
    client = importlib.import_module("queen")
    assert "site-packages" in str(client.__file__), "this is not the published client"
    module, name = scenario.split(".")
    play = getattr(importlib.import_module(f"tests.originals.scenarios.{module}"), name)
    async with asyncio.timeout(_LIMIT_S), client.Queen(urls[0]) as queen:
        await play(Scene(version, client.Queen, queen, urls, queue))


def _play_all(version: str) -> None:
    while line := sys.stdin.readline():
        try:
            asyncio.run(_play(version, **json.loads(line)))
        except Exception:
            traceback.print_exc()
            print(FAILED, flush=True)
        else:
            print(DONE, flush=True)


if __name__ == "__main__":
    _play_all(sys.argv[1])

"""Every command that was recorded on a Redis 8 gives the recorded answer here.

The file has what four servers answered: `reply` where they agree, `replies` otherwise. Wanted is
what the newest of them said, except for a lag that it does not know or has wrong: ours is exact.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queen.streambroker.replies import Executor, Failure
from tests.streambroker.comparing import masked, plain, without_fields
from tests.waiting import spend_async

_WANTED = "redis-8-unstable-20260625"
_CASES = json.loads((Path(__file__).parent / "golden.json").read_text())

_LAG = frozenset({"lag"})

# Commands whose recorded answers are not wanted, and why.
ACCEPTED = {
    "SET k v": "there are only streams",
    "XGROUP CREATE k g 0": "there are only streams",
    "XLEN k": "there are only streams",
    "XACK k g 1": "there are only streams",
    "XINFO STREAM k": "there are only streams",
}


@pytest.mark.parametrize("case", _CASES, ids=[f"{n}-{c['case']}" for n, c in enumerate(_CASES)])
async def test_a_recorded_session(executor: Executor, case: dict[str, Any]) -> None:
    together: list[list[bytes]] | None = None
    for step in case["steps"]:
        words = step["cmd"].split()
        wanted = step["reply"] if "reply" in step else step["replies"][_WANTED]
        if words == ["MULTI"]:
            together = []
        elif words == ["EXEC"]:
            assert together is not None
            replies = await executor.execute(together, is_atomic=True)
            assert plain(list(replies)) == wanted
            together = None
        elif together is not None:
            together.append([word.encode() for word in words])
        else:
            await _check(executor, step["cmd"], wanted)


async def _check(executor: Executor, text: str, wanted: Any) -> None:
    words = text.split()
    if "CLAIM" in words:
        # It was recorded after a pause: a claim is about time.
        await spend_async(0.03)
    (reply,) = await executor.execute([[word.encode() for word in words]])
    answer = masked(words, plain(reply))
    if text in ACCEPTED and answer != masked(words, wanted):
        assert isinstance(reply, Failure | int), text
        return
    if words[0] == "XINFO" and answer != masked(words, wanted):
        await check_lags(executor, words[2], answer)
        assert without_fields(answer, _LAG) == without_fields(masked(words, wanted), _LAG), text
        return
    assert answer == masked(words, wanted), text


async def check_lags(executor: Executor, stream: str, answer: Any) -> None:
    """Where the lag is not that of Redis, it is the number of entries after the last delivered."""
    for group in groups_of(answer):
        after = f"({group['last-delivered-id']}".encode()
        (entries,) = await executor.execute([(b"XRANGE", stream.encode(), after, b"+")])
        assert group["lag"] == len(plain(entries)), group


def groups_of(answer: Any) -> list[dict[str, Any]]:
    """Return the groups that XINFO GROUPS or XINFO STREAM FULL show."""
    if isinstance(answer[0], str):
        answer = answer[answer.index("groups") + 1]
    return [dict(zip(group[::2], group[1::2], strict=True)) for group in answer]


def test_there_is_something_to_compare() -> None:
    commands = [step["cmd"] for case in _CASES for step in case["steps"]]
    assert len(commands) > 200
    assert set(ACCEPTED) <= set(commands)

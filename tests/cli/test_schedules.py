"""`queen schedule`: what is pushed again and again."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


def test_a_schedule_is_created_shown_paused_and_deleted(run: Run, queue: str) -> None:
    name = f"nightly-{queue}"
    made = run(
        *("schedule", "create", name, queue, "30 3 * * MON-FRI", '{"kind": "nightly"}'),
        *("--zone", "Europe/Berlin", "--catch-up", "all", "--json"),
    ).row
    assert made["created"]
    assert run("schedule", "create", name, queue, "0 4 * * *", code=1).err.count("differently") == 1
    changed = run("schedule", "create", name, queue, "0 4 * * *", "--replace").row
    assert changed["changed"]
    shown = run("schedule", "show", name).row
    assert (shown["cron"], shown["zone"], shown["state"]) == ("0 4 * * *", "UTC", "active")
    (listed,) = run("schedule", "list", "--cron", "-q", queue).rows
    assert (listed["name"], listed["nextAt"]) == (name, shown["nextAt"])
    ticks = run("schedule", "next", name, "--count", "3").rows
    assert [tick["local"][-9:] for tick in ticks] == ["04:00 UTC"] * 3
    assert ticks[0]["at"] == shown["nextAt"]
    assert run("schedule", "pause", name).row["state"] == "paused"
    assert run("schedule", "resume", name).row["state"] == "active"
    assert run("schedule", "delete", name, "--yes").row == {"deleted": True, "name": name}
    gone = run("schedule", "show", name, code=3)
    assert f"Schedule '{name}' not found" in gone.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["x x x x x"], "is no number, range or step"),
        (["0 3 * * *", "{no json"], "the payload is not JSON"),
        (["0 3 * * *", "--zone", "Nowhere"], "there is no time zone"),
        (["0 3 * * *", "--catch-up", "some"], "catch-up"),
    ],
)
def test_what_is_no_schedule_is_wrong_usage(
    run: Run, queue: str, words: list[str], reason: str
) -> None:
    assert reason in run("schedule", "create", f"bad-{queue}", queue, *words, code=2).err

"""`queen push --header`, and headers where messages are printed."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.waiting import until


def test_headers_are_pushed_and_printed(run: Run, queue: str) -> None:
    run("push", queue, "1", "2", "--header", "source=shop", "-H", "path=a=b")
    run("push", queue, "3", "--delay", "0", "--header", "late=")
    run("push", queue, "4")
    expected = [{"source": "shop", "path": "a=b"}] * 2 + [{"late": ""}, None]
    assert [row.get("headers") for row in run("replay", queue).rows] == expected
    rows = run("pop", queue, "--batch", "4", "--group", "g").rows
    assert [row.get("headers") for row in rows] == expected


def test_what_is_no_header_is_refused(run: Run, queue: str) -> None:
    assert "NAME=VALUE" in run("push", queue, "1", "--header", "source", code=2).err
    assert "a header's name has 0 bytes" in run("push", queue, "1", "-H", "=x", code=2).err


def test_a_group_shows_who_holds_a_partition(run: Run, queue: str) -> None:
    run("push", queue, "1")
    run("pop", queue, "--group", queue, "--no-ack")
    # It is written down a moment after the pop.
    name = until(lambda: run("group", "show", queue).row["partitions"][0]["workerId"], look_s=0.2)
    assert name.count(":") >= 2

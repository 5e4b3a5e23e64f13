"""`queen push --spool` and `queen spool`: a local folder with what no server could take."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queen import Message, Queen
from tests.cli.conftest import Run
from tests.conftest import ServerProcess
from tests.ports import free_port


@pytest.fixture
def away() -> str:
    """The URL of a server that is away."""
    return f"http://127.0.0.1:{free_port()}"


def test_what_no_server_takes_is_sent_by_the_next_push(
    run: Run, server: ServerProcess, away: str, queue: str, tmp_path: Path
) -> None:
    urls = f"{server.url},{away}"
    lines = "".join(f'{{"n":{number}}}\n' for number in range(300))
    kept = run("push", queue, "--url", away, "--spool", str(tmp_path), "--json", text=lines)
    assert kept.row == {"queue": queue, "stored": 0, "buffered": 300, "duplicates": 0, "failed": 0}
    assert f"waits in {tmp_path}" in kept.err
    (row,) = run("spool", "status", "--path", str(tmp_path)).rows
    assert (row["records"], row["for"], row["inUse"], row["refused"]) == (300, away, False, 0)
    more = run("push", queue, '{"n":300}', "--url", urls, "--spool", str(tmp_path))
    assert "failed" in more.err
    assert [row["data"]["n"] for row in run("replay", queue).rows] == list(range(301))
    assert run("spool", "status", "--path", str(tmp_path)).rows == []


def test_a_delay_waits_too(run: Run, away: str, queue: str, tmp_path: Path) -> None:
    ran = run("push", queue, "1", "--delay", "5", "--url", away, "--spool", str(tmp_path))
    assert "1 buffered" in ran.err


def refuse_one(url: str, away: str, queue: str, folder: Path) -> None:
    """Leave a folder with one record that the server has refused."""

    async def work() -> None:
        bad = Message({"secret": 1}, transaction_id="bad", trace_id=5)  # type: ignore[arg-type]
        async with Queen(away, spool=folder, spool_options={"broker": "shop"}) as producer:
            await producer.queue(queue).push([bad, Message(2)])
        async with Queen(url, spool=folder, spool_options={"broker": "shop"}) as producer:
            await producer.flush()

    asyncio.run(work())


def test_refused_records_are_shown_put_back_and_dropped(
    run: Run, server: ServerProcess, away: str, queue: str, tmp_path: Path
) -> None:
    refuse_one(server.url, away, queue, tmp_path)
    path = ("--path", str(tmp_path))
    listed = run("spool", "list", *path)
    assert listed.row["queue"] == queue
    assert listed.row["transactionId"] == "bad"
    assert "traceId" in listed.row["reason"]
    assert "secret" not in listed.out
    assert run("spool", "list", *path, "--payload").row["data"] == {"secret": 1}
    unknown = run("spool", "drop", *path, "--yes", "nothing/1", code=3)
    assert "no refused record nothing/1" in unknown.err
    assert run("spool", "retry", *path, listed.row["id"]).row == {"retried": 1}
    (row,) = run("spool", "status", *path).rows
    assert (row["records"], row["refused"]) == (1, 0)


def test_dropped_records_are_gone(
    run: Run, server: ServerProcess, away: str, queue: str, tmp_path: Path
) -> None:
    refuse_one(server.url, away, queue, tmp_path)
    path = ("--path", str(tmp_path))
    assert "nothing was done" in run("spool", "drop", *path, text="n\n", code=1).err
    assert run("spool", "drop", *path, "--yes").row == {"dropped": 1}
    assert run("spool", "status", *path).rows == []


def test_a_spool_that_is_in_use_is_only_counted(run: Run, away: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with Queen(away, spool=tmp_path) as producer:
            await producer.queue("q").push(1)
            rows = (await asyncio.to_thread(run, "spool", "status", "--path", str(tmp_path))).rows
            assert [(row["inUse"], row["records"]) for row in rows] == [(True, None)]

    asyncio.run(work())


def test_a_folder_that_there_is_not(run: Run, tmp_path: Path) -> None:
    ran = run("spool", "status", "--path", str(tmp_path / "nothing"), code=3)
    assert "is no folder" in ran.err
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot be a spool" in run("push", "q", "1", "--spool", str(file), code=2).err


def test_the_spool_of_the_server_is_asked_without_a_path(run: Run, queue: str) -> None:
    pushed = run("push", queue, "1", "2", "--qos0", "--json")
    assert pushed.row == {"queue": queue, "stored": 0, "buffered": 2, "duplicates": 0, "failed": 0}
    state = run("spool", "status").row
    assert state["enabled"] and state["database"] == "connected" and state["bufferedMessages"] >= 2
    assert run("spool", "list").rows == []
    assert run("spool", "retry").row == {"retried": 0}
    assert run("spool", "drop", "--yes").row == {"dropped": 0}
    assert "no id of a record" in run("spool", "retry", "nonsense", code=2).err
    assert run("status").row["database"] == "connected"

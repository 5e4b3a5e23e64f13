"""`queen push` stores what it is given, quickly, and says what it could not store."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from tests.api import Api
from tests.cli.conftest import QUEEN, Run, environment
from tests.conftest import ServerProcess
from tests.waiting import until


def stored(run: Run, queue: str) -> list[object]:
    return [row["data"] for row in run("replay", queue).rows]


def test_arguments_are_payloads_of_any_type(run: Run, queue: str) -> None:
    ran = run("push", queue, '{"a": 1}', '"text"', "null", "[1,\n2]")
    assert ran.out == ""
    assert "4 stored" in ran.err
    assert stored(run, queue) == [{"a": 1}, "text", None, [1, 2]]


def test_the_summary_is_data_when_asked_for(run: Run, queue: str) -> None:
    ran = run("push", queue, "1", "--json")
    assert ran.row == {"queue": queue, "stored": 1, "duplicates": 0, "failed": 0}


def test_a_hundred_thousand_lines_are_not_sent_one_by_one(run: Run, api: Api, queue: str) -> None:
    lines = "".join(f'{{"n":{number},"key":"k{number % 10}"}}\n' for number in range(100_000))
    ran = run("push", queue, "--partition-by", "key", "--json", text=lines)
    assert ran.row["stored"] == 100_000
    # Blocks of five thousand, or less when the pipe was slow; never a line.
    assert 20 <= pushes(api, queue, 100_000) < 2000
    third = [row["data"]["n"] for row in run("replay", queue, "--partition", "k3").rows]
    assert third == list(range(3, 100_000, 10))


def pushes(api: Api, queue: str, messages: int) -> int:
    """How many requests brought so many messages; counts are written down a moment late."""

    def counted() -> Any:
        found = api.call("GET", f"/api/v1/status?queue={queue}").json
        is_all = sum(minute["ingested"] for minute in found["throughput"]) >= messages
        return found["messages"] if is_all else None

    requests: int = until(counted, look_s=0.1)["requests"]
    return requests


def test_bad_lines_are_named_and_the_others_stored(run: Run, queue: str) -> None:
    text = '{"id":"a"}\n\nnot json\n{"id":"b"}\n{"other":1}\n{"id":null}\n{"id":7}'
    ran = run("push", queue, "--id-by", "id", text=text, code=1)
    complaints = [line for line in ran.err.splitlines() if line.startswith("queen: line")]
    assert [line.split(":")[1].strip() for line in complaints] == ["line 3", "line 5", "line 6"]
    assert "not JSON" in complaints[0]
    assert "'id'" in complaints[1]
    assert "3 stored" in ran.err
    assert stored(run, queue) == [{"id": "a"}, {"id": "b"}, {"id": 7}]


def test_a_line_that_only_the_server_refuses_is_found(run: Run, queue: str) -> None:
    too_deep = "[" * 200 + "]" * 200
    lines = [str(number) for number in range(1000)]
    lines[617] = too_deep
    ran = run("push", queue, text="\n".join(lines), code=1)
    assert "queen: line 618: " in ran.err
    assert "999 stored" in ran.err
    assert len(stored(run, queue)) == 999


def test_pushed_again_with_ids_nothing_is_stored_twice(run: Run, queue: str) -> None:
    text = "".join(f'{{"id":{number}}}\n' for number in range(50))
    run("push", queue, "--id-by", "id", text=text)
    ran = run("push", queue, "--id-by", "id", "--json", text=text)
    assert (ran.row["stored"], ran.row["duplicates"]) == (0, 50)


def test_a_csv_file_is_read_by_its_head(run: Run, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    file.write_bytes(b'id,note\n1,"two\nlines"\n2\n3,\xff\n4,ok\n')
    ran = run("push", queue, "--file", str(file), "--partition-by", "id", code=1)
    assert "line 4: it has not the 2 fields" in ran.err
    assert "line 5: it is not UTF-8" in ran.err
    rows = run("replay", queue).rows
    assert {row["partition"]: row["data"] for row in rows} == {
        "1": {"id": "1", "note": "two\nlines"},
        "4": {"id": "4", "note": "ok"},
    }


def test_a_parquet_file_is_read_row_by_row(run: Run, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    columns = {"id": [1, 2], "total": [9.5, None], "at": [datetime(2026, 1, 2, tzinfo=UTC)] * 2}
    parquet.write_table(pyarrow.table(columns), file)
    ran = run("push", queue, "--file", str(file), "--id-by", "id", "--partition-by", "id")
    assert "2 stored" in ran.err
    rows = {row["partition"]: row["data"] for row in run("replay", queue).rows}
    assert rows == {
        "1": {"id": 1, "total": 9.5, "at": "2026-01-02T00:00:00Z"},
        "2": {"id": 2, "total": None, "at": "2026-01-02T00:00:00Z"},
    }


def test_what_is_not_parquet_is_said_to_be(run: Run, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    file.write_bytes(b"PAR1")
    assert "not a Parquet file" in run("push", queue, "-f", str(file), code=2).err


def test_parquet_says_what_to_install(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    file = tmp_path / "orders.parquet"
    file.write_bytes(b"PAR1")
    command = [QUEEN, "push", "orders", "-f", str(file)]
    env = {**environment(server.url), "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (ended.returncode, "pip install pyarrow" in ended.stderr) == (2, True)


def test_wrong_usage(run: Run, queue: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.ndjson")
    assert missing in run("push", queue, "-f", missing, code=2).err
    run("push", queue, "1", "-f", missing, code=2)
    run("push", code=2)


def test_on_a_terminal_without_input_it_says_what_to_give(on_terminal: Run, queue: str) -> None:
    assert "NDJSON on standard input" in on_terminal("push", queue, code=2).out


def test_on_a_terminal_it_ends_with_a_summary(on_terminal: Run, queue: str) -> None:
    assert f"{queue}: 1 stored" in on_terminal("push", queue, "1").out


def test_a_delay_is_kept(run: Run, queue: str) -> None:
    run("push", queue, "1", "--delay", "3600")
    assert run("pop", queue).out == ""


@pytest.mark.parametrize("delay", ["inf", "1e400", "nan", "-1"])
def test_a_delay_without_an_end_is_wrong_usage(run: Run, queue: str, delay: str) -> None:
    assert "--delay" in run("push", queue, "1", "--delay", delay, code=2).err


def test_one_partition_and_a_field_that_names_it_are_wrong_usage(run: Run, queue: str) -> None:
    given = ("--partition", "p", "--partition-by", "id")
    assert "not both" in run("push", queue, '{"id": 1}', *given, code=2).err


@pytest.mark.parametrize(("kind", "text"), [("ndjson", "1\n2\n"), ("json", "[1, 2]")])
def test_a_byte_order_mark_is_no_part_of_the_text(
    run: Run, queue: str, kind: str, text: str
) -> None:
    run("push", queue, "--format", kind, text=b"\xef\xbb\xbf" + text.encode())
    assert [row["data"] for row in run("replay", queue).rows] == [1, 2]


def test_lines_that_trickle_are_stored_as_they_come(
    start: Callable[..., subprocess.Popen[str]], run: Run, queue: str
) -> None:
    process = start("push", queue, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(json.dumps({"first": True}) + "\n")
    process.stdin.flush()
    # The producer has not finished, and its line is there.
    assert run("pop", queue, "--wait", "20").row["data"] == {"first": True}
    process.stdin.close()
    process.stdin = None
    assert process.wait(timeout=20) == 0


def test_a_json_array_is_many_messages(run: Run, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.json"
    file.write_text('[{"n": 1},\n {"n": 2, "list": [1, 2]},\n 3]\n')
    run("push", queue, "--file", str(file))
    assert [row["data"] for row in run("replay", queue).rows] == [
        {"n": 1},
        {"n": 2, "list": [1, 2]},
        3,
    ]
    other = f"{queue}-b"
    run("push", other, "--format", "json", text="[1, 2]")
    assert [row["data"] for row in run("replay", other).rows] == [1, 2]


def test_what_is_no_array_in_a_json_file_is_still_pushed(
    run: Run, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "one.json"
    file.write_text('{\n  "n": 1\n}\n')
    run("push", queue, "--file", str(file))
    file.write_text('{"n": 2}\n[3]\n')
    run("push", queue, "--file", str(file))
    assert [row["data"] for row in run("replay", queue).rows] == [{"n": 1}, {"n": 2}, [3]]
    file.write_text("[1, 2")
    assert "line 1" in run("push", queue, "--file", str(file), code=1).err

"""`queen queue`, `group`, `seek`, `dlq`, `trace`, `status` and `bench`."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from tests.api import Api
from tests.cli.conftest import Run
from tests.contract.conftest import refresh

Start = Callable[..., subprocess.Popen[str]]


def queues(run: Run) -> list[str]:
    return [row["name"] for row in run("queue", "list").rows]


def test_a_queue_is_created_shown_cleared_and_deleted(run: Run, queue: str) -> None:
    made = run("queue", "create", queue, "--namespace", "n", "-o", "leaseTime=77").row
    assert made["options"]["leaseTime"] == 77
    run("push", queue, "1", "2")
    assert queue in queues(run)
    assert run("queue", "list", "--namespace", "nobody").out == ""
    assert run("queue", "show", queue, "--json").row["name"] == queue
    run("queue", "clear", queue, "--yes")
    assert run("replay", queue).out == ""
    assert run("queue", "delete", queue, "--yes", "--json").row == {"deleted": True, "queue": queue}
    assert queue not in queues(run)


def test_options_that_are_wrong_are_wrong_usage(run: Run, queue: str) -> None:
    assert "leaseTime" in run("queue", "create", queue, "-o", "lease=1", code=2).err
    assert "name=value" in run("queue", "create", queue, "-o", "leaseTime", code=2).err
    run("queue", "create", queue, "-o", "leaseTime=long", code=2)


def test_deleting_asks_first(run: Run, queue: str) -> None:
    run("queue", "create", queue)
    for verb in ("delete", "clear"):
        ran = run("queue", verb, queue, text="n\n", code=1)
        assert "[y/N]" in ran.err
        assert ran.out == ""
    assert queue in queues(run)
    run("queue", "delete", queue, text="y\n")
    assert queue not in queues(run)


def test_queues_are_a_table_on_a_terminal(run: Run, on_terminal: Run, queue: str) -> None:
    run("push", queue, "1")
    assert "┃ queue" in on_terminal("queue", "list").out
    shown = on_terminal("queue", "show", queue).out
    assert "┃ partition" in shown
    assert "Default" in shown
    rows = on_terminal("queue", "list", "--json").out.splitlines()
    assert queue in [json.loads(row)["name"] for row in rows]


def test_what_is_not_there_is_not_found(run: Run, queue: str) -> None:
    assert "queen queue list" in run("queue", "show", queue, code=3).err
    run("queue", "delete", queue, "-y", code=3)
    run("queue", "clear", queue, "-y", code=3)
    run("group", "show", queue, code=3)
    run("group", "pause", queue, code=3)
    run("group", "delete", queue, "-y", code=3)
    run("seek", queue, "nobody", "--to", "end", code=3)
    run("trace", "name", queue, code=3)
    run("trace", "show", "00000000-0000-8001-bfff-ffffffffffff", queue, code=3)


def test_a_group_is_shown_paused_resumed_and_deleted(
    run: Run, on_terminal: Run, api: Api, queue: str
) -> None:
    group = f"g-{queue}"
    run("push", queue, "1", "2")
    run("pop", queue, "-g", group)
    refresh(api)
    (entry,) = [row for row in run("group", "list").rows if row["name"] == group]
    assert entry["totalLag"] == 1
    assert run("group", "show", group).row["partitions"][0]["position"] == 1
    assert "┃ queue" in on_terminal("group", "show", group).out
    assert "┃ group" in on_terminal("group", "list").out
    assert run("group", "pause", group, "--queue", queue).row["paused"] is True
    assert run("pop", queue, "-g", group).out == ""
    assert run("group", "resume", group).row["paused"] is False
    assert run("pop", queue, "-g", group).row["data"] == 2
    assert run("group", "delete", group, "--yes").row["existed"] is True
    run("group", "show", group, code=3)


def test_seek_says_how_many_are_read_again(run: Run, queue: str) -> None:
    run("push", queue, "1", "2", "3")
    run("pop", queue, "-g", "g", "-n", "3")
    dry = run("seek", queue, "g", "--to", "beginning", "--dry-run")
    assert (dry.row["messagesAgain"], dry.row["dryRun"]) == (3, True)
    assert "3 messages would be read again" in dry.err
    assert run("pop", queue, "-g", "g").out == ""
    assert "3 messages are read again" in run("seek", queue, "g", "--to", "1h").err
    assert run("pop", queue, "-g", "g").row["data"] == 1
    run("seek", queue, "g", "--to", "end", "--partition", "Default")
    assert run("pop", queue, "-g", "g").out == ""
    run("seek", queue, "g", "--to", "somewhere", code=2)


def bury(run: Run, api: Api, queue: str) -> None:
    """Make a dead letter."""
    run("push", queue, '{"total": 12}')
    message = run("pop", queue, "-g", "g", "--no-ack").row
    ack: dict[str, Any] = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    ack |= {"consumerGroup": "g", "status": "dlq", "error": "no stock"}
    assert api.call("POST", "/api/v1/ack", json.dumps(ack)).status == 200


def test_dead_letters_are_listed_retried_and_purged(
    run: Run, on_terminal: Run, api: Api, queue: str
) -> None:
    bury(run, api, queue)
    letter = run("dlq", "list", queue).row
    assert (letter["data"], letter["errorMessage"]) == ({"total": 12}, "no stock")
    assert run("dlq", "errors", queue).row["count"] == 1
    assert "no stock" in on_terminal("dlq", "list", queue).out
    assert run("dlq", "list", queue, "--error", "other").out == ""
    assert run("dlq", "retry", queue, "--group", "g").row["retried"] == 1
    assert run("pop", queue, "-g", "g").row["data"] == {"total": 12}
    bury(run, api, queue)
    assert "[y/N]" in run("dlq", "purge", queue, text="n\n", code=1).err
    assert run("dlq", "purge", queue, "--yes").row["purged"] == 1
    assert run("dlq", "list", queue).out == ""


def test_traces_are_found_by_message_and_by_name(
    run: Run, on_terminal: Run, api: Api, queue: str
) -> None:
    run("push", queue, "1")
    message = run("pop", queue).row
    event: dict[str, Any] = {key: message[key] for key in ("transactionId", "partitionId")}
    event |= {"data": {"text": "charged"}, "traceNames": [queue], "eventType": "step"}
    assert api.call("POST", "/api/v1/traces", json.dumps(event)).status in (200, 201)
    found = run("trace", "show", message["partitionId"], message["transactionId"]).row
    assert found["data"] == {"text": "charged"}
    assert run("trace", "name", queue).row["queue_name"] == queue
    assert queue in [row["trace_name"] for row in run("trace", "names", "--limit", "1000").rows]
    assert "charged" in on_terminal("trace", "name", queue).out


def test_status_says_problems_first(run: Run, on_terminal: Run, api: Api, queue: str) -> None:
    bury(run, api, queue)
    run("group", "pause", "g", "-q", queue)
    refresh(api)
    found = run("status").row
    assert next(iter(found)) == "problems"
    assert any("dead letters" in one for one in found["problems"])
    assert {"group": "g", "queue": queue, "paused": True}.items() <= next(
        one for one in found["laggingGroups"] if one["queue"] == queue
    ).items()
    shown = on_terminal("status").out
    assert shown.index("dead letters") < shown.index("storedBytes")


def test_status_says_that_pushes_are_held_back(
    run: Run, start_server: Callable[..., Any], tmp_path: Any
) -> None:
    server = start_server("--data-dir", str(tmp_path))
    assert run("status", "--url", server.url).row["problems"] == []
    server.api().call("POST", "/api/v1/system/maintenance", json.dumps({"enabled": True}))
    found = run("status", "--url", server.url).row
    assert found["maintenance"] is True
    assert "maintenance" in found["problems"][0]


def test_status_watches_until_ctrl_c(start: Start) -> None:
    process = start("status", "--watch", "--every", "0.1")
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert all("problems" in look for look in looks)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0


def test_bench_measures_and_leaves_nothing_behind(run: Run) -> None:
    found = run("bench", "--seconds", "0.3", "--partitions", "10").row
    assert found["pushed"] == found["consumed"] > 0
    assert found["pushPerSecond"] > 0
    assert not [name for name in queues(run) if name.startswith("bench-")]

"""`queen queue`, `group`, `seek`, `dlq`, `trace`, `status` and `bench`."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from queen.cli.exits import code_and_reason
from queen.cli.paging import read_pages
from queen.core.options import OPTION_NAMES
from queen.errors import Contended, EncryptionUnavailable, NotFound
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


def test_a_queue_keeps_what_is_not_named(run: Run, queue: str) -> None:
    run("queue", "create", queue, "--namespace", "n", "--encryption", "-o", "retentionSeconds=60")
    ran = run("queue", "create", queue, "-o", "leaseTime=77")
    assert f"{queue}: leaseTime was 300, is 77" in ran.err
    ran = run("queue", "alter", queue, "--option", "ttl=5", "--task", "t", "--unset", "leaseTime")
    options = ran.row["options"]
    assert (options["encryptionEnabled"], options["retentionSeconds"]) == (True, 60)
    assert (options["leaseTime"], options["ttl"]) == (300, 5)
    assert (ran.row["namespace"], ran.row["task"]) == ("n", "t")
    assert "nothing was changed" in run("queue", "alter", queue, "-o", "ttl=5").err


def test_encryption_and_namespace_go_when_that_is_said(run: Run, queue: str) -> None:
    run("queue", "create", queue, "--namespace", "n", "--encryption")
    refused = run("queue", "alter", queue, "--unset", "encryptionEnabled", code=2)
    assert "--no-encryption" in refused.err
    ran = run("queue", "alter", queue, "--no-encryption", "--namespace", "")
    assert (ran.row["namespace"], ran.row["options"]["encryptionEnabled"]) == ("", False)
    assert "name what to change" in run("queue", "alter", queue, code=2).err
    run("queue", "alter", f"no-{queue}", "-o", "ttl=1", code=3)


def test_all_options_are_shown(run: Run, on_terminal: Run, queue: str) -> None:
    run("queue", "create", queue, "-o", "leaseTime=77")
    options = {one["name"]: one for one in run("queue", "show", queue).row["options"]}
    assert len(options) == len(OPTION_NAMES)
    assert (options["leaseTime"]["value"], options["leaseTime"]["origin"]) == (77, "set")
    shown = on_terminal("queue", "show", queue).out
    assert all(name in shown for name in OPTION_NAMES)


def test_options_that_are_wrong_are_wrong_usage(run: Run, queue: str) -> None:
    assert "leaseTime" in run("queue", "create", queue, "-o", "lease=1", code=2).err
    assert "name=value" in run("queue", "create", queue, "-o", "leaseTime", code=2).err
    said = run("queue", "create", queue, "-o", "leaseTime=long", code=2).err
    assert "option 'leaseTime' must be a whole number between 1 and" in said
    assert '"long"' in said
    assert "queen queue create --help`" in said
    said = run("queue", "create", queue, "-o", "dedup=sometimes", code=2).err
    assert "forever, off, window" in said


def test_what_contradicts_itself_is_wrong_usage(run: Run, queue: str) -> None:
    twice = ("-o", "leaseTime=3", "-o", "leaseTime=5")
    assert "leaseTime is named twice" in run("queue", "create", queue, *twice, code=2).err
    run("queue", "create", queue)
    run("queue", "alter", queue, "--unset", "leaseTime", "-o", "leaseTime=3", code=2)
    run("queue", "alter", queue, "--encryption", "-o", "encryptionEnabled=false", code=2)
    assert "--since" in run("replay", queue, "--since", "2h", "--until", "3h", code=2).err


def test_what_says_itself_what_to_do_gets_no_hint() -> None:
    said = "this server has no key to encrypt with: start it with QUEEN_ENCRYPTION_KEY"
    assert code_and_reason(EncryptionUnavailable(said), ()) == (1, said)
    # Nobody lists messages; and a sentence does not end in the middle of another.
    assert code_and_reason(NotFound("Message not found"), ()) == (3, "Message not found")
    assert code_and_reason(Contended("They met."), ()) == (
        1,
        "They met: run it again a little later",
    )


def test_a_list_longer_than_a_page_is_whole_and_a_cut_one_says_so() -> None:
    there = [{"n": number} for number in range(2100)]
    asked: list[tuple[int, int]] = []

    async def read(limit: int, offset: int) -> list[dict[str, Any]]:
        assert limit <= 1000
        asked.append((limit, offset))
        return there[offset : offset + limit]

    assert asyncio.run(read_pages(read, None, 40)) == there[40:]
    assert asked == [(1000, 40), (1000, 1040), (1000, 2040)]
    assert asyncio.run(read_pages(read, 1500, 0)) == there[:1500]


def test_a_list_that_is_cut_says_so(run: Run, queue: str) -> None:
    for name in (queue, f"{queue}-b"):
        run("queue", "create", name)
    cut = run("queue", "list", "--limit", "1")
    assert len(cut.rows) == 1
    assert "more than 1" in cut.err
    assert "more" not in run("queue", "list").err
    assert {queue, f"{queue}-b"} <= set(queues(run))
    # Larger than any page of the server.
    assert {queue, f"{queue}-b"} <= {
        row["name"] for row in run("queue", "list", "--limit", "10000").rows
    }


def test_an_age_that_nobody_has_counted_is_not_zero(run: Run, api: Api, queue: str) -> None:
    run("push", queue, "1")
    refresh(api)
    (row,) = [row for row in run("queue", "list").rows if row["name"] == queue]
    assert (row["messages"]["pending"], row["lagSeconds"]) == (1, None)


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
    assert "queue" in on_terminal("queue", "list").out.splitlines()[0]
    shown = on_terminal("queue", "show", queue).out
    assert "partition" in shown
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
    for verb in ("list", "errors", "retry", "purge"):
        yes = ("--yes",) if verb == "purge" else ()
        said = run("dlq", verb, queue, *yes, code=3).err
        assert f"Queue '{queue}' not found: `queen queue list`" in said
    run("schedule", "list", "-q", queue, code=3)
    said = run("stream", "show", queue, code=3).err
    assert f"Stream '{queue}' not found: `queen stream list`" in said
    assert "queen schedule list" in run("schedule", "cancel", queue, "a7", code=3).err


def test_a_group_that_its_breaker_has_paused_is_a_problem(
    run: Run, on_terminal: Run, api: Api, queue: str
) -> None:
    group = f"g-{queue}"
    api.configure(queue, breaker=100, breakerOutcomes=1, breakerPause=600_000)
    api.push_many(queue, 2)
    (message,) = api.messages(queue, consumerGroup=group)
    api.ack(message, "failed", consumerGroup=group)
    state = run("group", "show", group).row
    assert state["breakerOpenSince"]
    shown = on_terminal("group", "show", group)
    assert "its breaker has paused the group" in " ".join((shown.out + shown.err).split())
    snapshot = run("status", "--json").row
    (mine,) = [row for row in snapshot["laggingGroups"] if row["group"] == group]
    assert mine["breakerOpenSince"] == state["breakerOpenSince"]
    run("group", "resume", group)
    assert run("group", "show", group).row["breakerOpenSince"] is None


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
    assert "position" in on_terminal("group", "show", group).out
    assert "group" in on_terminal("group", "list").out
    assert run("group", "pause", group, "--queue", queue).row["paused"] is True
    assert run("pop", queue, "-g", group).out == ""
    assert run("group", "resume", group).row["paused"] is False
    assert run("pop", queue, "-g", group).row["data"] == 2
    assert run("group", "share", group, "--queue", queue).row["shared"] is True
    assert run("group", "show", group).row["shared"] is True
    assert f"shared in {queue}" in on_terminal("group", "show", group).out
    assert run("group", "order", group).row["shared"] is False
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
    assert shown.index("dead letters") < shown.index("stored")


def test_status_says_that_pushes_are_held_back(
    run: Run, start_server: Callable[..., Any], tmp_path: Any
) -> None:
    server = start_server("--data-dir", str(tmp_path))
    assert run("status", "--url", server.url).row["problems"] == []
    held = {"pushesHeld": False, "popsHeld": False, "spooled": 0}
    assert run("maintenance", "show", "--url", server.url).row == held
    run("maintenance", "on", "--pop", "--url", server.url)
    assert run("maintenance", "show", "--url", server.url).row == {**held, "popsHeld": True}
    run("maintenance", "off", "--pop", "--url", server.url)
    run("maintenance", "on", "--url", server.url)
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


def test_bench_follows_lone_messages_step_by_step(run: Run) -> None:
    rows = run("bench", "--latency", "--messages", "5").rows
    steps = [row["step"] for row in rows]
    assert len(steps) == 13
    assert steps.index("pop: handed over") < steps.index("push: answered, and told to who waits")
    took = {row["step"]: row["p50Us"] for row in rows}
    assert took["END TO END"] > took["append: rows, lease, COMMIT, disk, and back"] > 0
    assert sum(row["serverCpuUs"] or 0 for row in rows) > 0
    assert not [name for name in queues(run) if name.startswith("bench-")]


def test_dead_letters_of_all_queues_and_one_by_its_id(run: Run, api: Api, queue: str) -> None:
    for name in (queue, f"{queue}-b"):
        run("queue", "create", name, "-o", "retryLimit=0", "-o", "retryDelay=0")
        api.push_many(name, 2)
        for message in api.messages(name, batch=2):
            api.ack(message, "failed", error="the bank is closed")
    rows = [row for row in run("dlq", "list", "--limit", "1000").rows if queue in row["queue"]]
    assert {row["queue"] for row in rows} == {queue, f"{queue}-b"}
    assert any(row["error"] == "the bank is closed" for row in run("dlq", "errors").rows)
    chosen = next(row for row in rows if row["queue"] == queue)
    assert run("dlq", "retry", "--id", chosen["id"]).row["retried"] == 1
    left = [row["id"] for row in run("dlq", "list", queue).rows]
    assert len(left) == 1
    assert chosen["id"] not in left
    assert "no dead letters" in run("dlq", "retry", "--id", chosen["id"], code=3).err
    run("dlq", "retry", code=2)
    run("dlq", "retry", queue, "--id", left[0], "--group", "g", code=2)


def test_scheduled_messages_are_listed_and_taken_back(run: Run, queue: str) -> None:
    run("push", queue, '{"id": "a7"}', "--id-by", "id", "--delay", "3600")
    (row,) = run("schedule", "list", "--queue", queue).rows
    assert row["transactionId"] == "a7"
    assert run("schedule", "cancel", queue, "a7").row["cancelled"] == 1
    # It would have made the queue; now nothing does.
    assert "queen queue list" in run("schedule", "list", "-q", queue, code=3).err
    run("schedule", "cancel", queue, "a7", code=3)
    run("queue", "create", queue)
    assert run("schedule", "list", "-q", queue).out == ""


def test_status_says_what_is_kept_for_ever(run: Run, on_terminal: Run, queue: str) -> None:
    run("push", queue, "1")
    row = run("status").row
    assert queue in row["keptForEver"] or len(row["keptForEver"]) == 100
    assert "for ever" in row["retention"]
    assert row["diskFreeBytes"] > 0
    shown = on_terminal("status").out
    assert "every message for ever" in shown
    assert "retentionSeconds" in shown


def test_members_are_consumers(run: Run, api: Api, queue: str) -> None:
    api.push_many(queue, 3, "a")
    api.push_many(queue, 3, "b")
    group = f"g-{queue}"
    # One consumer with two partitions.
    assert len(api.messages(queue, batch=6, partitions=2, consumerGroup=group)) == 6
    refresh(api)
    (row,) = [row for row in run("group", "list").rows if row["name"] == group]
    assert (row["members"], row["activeLeases"]) == (1, 2)

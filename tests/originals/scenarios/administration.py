"""What the client's `admin` asks: every call of it, with something to be seen."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from tests.originals.scene import Scene, only


async def _one_done_of_three(scene: Scene) -> Any:
    """Three messages, the first done by a group; return it."""
    await scene.queue().namespace(f"ns-{scene.name}").task("print").create()
    await scene.queue().push([{"data": {"n": n}, "transactionId": f"t{n}"} for n in range(3)])
    (message,) = await scene.queue().group("g").wait(False).pop()
    assert (await scene.queen.ack(message, True, {"group": "g"}))["success"]
    await _counted(scene)
    return message


async def _counted(scene: Scene) -> None:
    """Have everything counted now; where there is much, the broker counts only now and then."""
    for _ in range(100):
        answer = await scene.queen.admin.refresh_consumer_stats()
        if not (answer or {}).get("skipped"):
            return
    raise AssertionError(answer)


async def _push(scene: Scene, payload: Any) -> Any:
    return await scene.queue().push(payload)


def _mine(rows: list[Any], key: str, value: str) -> Any:
    (row,) = [one for one in rows if one[key] == value]
    return row


async def no_call_is_left_out(scene: Scene) -> None:
    admin = type(scene.queen.admin)
    calls = {name for name, value in vars(admin).items() if inspect.iscoroutinefunction(value)}
    played = "".join(path.read_text() for path in Path(__file__).parent.glob("*.py"))
    assert len(calls) > 25
    assert [name for name in calls if f"admin.{name}" not in played] == []


async def the_overview_counts(scene: Scene) -> None:
    await _one_done_of_three(scene)
    answer = await scene.queen.admin.get_overview()
    assert answer["queues"] >= 1 and answer["partitions"] >= 1, answer
    assert answer["messages"]["total"] >= 3, answer


async def namespaces_and_tasks_are_listed(scene: Scene) -> None:
    await _one_done_of_three(scene)
    answer = await scene.queen.admin.get_namespaces()
    row = _mine(answer["namespaces"], "namespace", f"ns-{scene.name}")
    assert row["queues"] == 1 and row["messages"]["total"] == 3, row
    answer = await scene.queen.admin.get_tasks()
    assert _mine(answer["tasks"], "task", "print")["queues"] >= 1, answer


async def queues_are_listed_and_shown(scene: Scene) -> None:
    await _one_done_of_three(scene)
    answer = await scene.queen.admin.list_queues(limit=1000)
    row = _mine(answer["queues"], "name", scene.name)
    assert row["namespace"] == f"ns-{scene.name}" and row["task"] == "print", row
    assert row["partitions"] == 1 and row["messages"]["total"] == 3, row
    answer = await scene.queen.admin.get_queue(scene.name)
    assert answer["name"] == scene.name and answer["totals"]["total"] == 3, answer
    assert [one["name"] for one in answer["partitions"]] == ["Default"], answer


async def partitions_are_listed(scene: Scene) -> None:
    await _one_done_of_three(scene)
    await scene.queue().partition("another").push({"n": 4})
    answer = await scene.queen.admin.get_partitions(queue=scene.name)
    assert {one["name"] for one in answer["partitions"]} == {"Default", "another"}, answer


@only("0.15.0")
async def a_queue_is_cleared(scene: Scene) -> None:
    """The original has no such route, and 2.6.0 no longer has the call."""
    await _one_done_of_three(scene)
    await scene.queue().partition("another").push({"n": 4})
    answer = await scene.queen.admin.clear_queue(scene.name, "another")
    assert answer["success"] is True, answer
    assert await scene.drain() == [{"n": 0}, {"n": 1}, {"n": 2}]
    await scene.queue().push({"n": 5})
    answer = await scene.queen.admin.clear_queue(scene.name)
    assert answer["success"] is True, answer
    assert await scene.drain() == []


async def messages_are_listed_and_shown(scene: Scene) -> None:
    message = await _one_done_of_three(scene)
    admin = scene.queen.admin
    answer = await admin.list_messages(queue=scene.name, limit=10)
    assert [one["transactionId"] for one in answer["messages"]] == ["t2", "t1", "t0"], answer
    assert {one["partitionId"] for one in answer["messages"]} == {message["partitionId"]}
    answer = await admin.get_message(message["partitionId"], "t1")
    assert answer["payload"] == {"n": 1} and answer["queue"] == scene.name, answer


async def a_message_is_deleted(scene: Scene) -> None:
    message = await _one_done_of_three(scene)
    answer = await scene.queen.admin.delete_message(message["partitionId"], "t1")
    assert answer["success"] is True, answer
    assert await scene.drain() == [{"n": 0}, {"n": 2}]


async def a_dead_letter_is_tried_again(scene: Scene) -> None:
    await scene.queue().push({"data": {"n": 1}, "transactionId": "bad"})
    (message,) = await scene.queue().wait(False).pop()
    await scene.queen.ack(message, "dlq", {"error": "no ink"})
    assert (await scene.queue().dlq().get())["total"] == 1
    answer = await scene.queen.admin.retry_message(message["partitionId"], "bad")
    assert answer["success"] is True, answer
    assert await scene.drain() == [{"n": 1}]
    assert (await scene.queue().dlq().get())["total"] == 0


@only("0.15.0")
async def a_message_is_moved_to_the_dead_letters(scene: Scene) -> None:
    """The original has no such route, and 2.6.0 no longer has the call."""
    await scene.queue().push([{"data": {"n": n}, "transactionId": f"t{n}"} for n in range(2)])
    (message,) = await scene.queue().wait(False).pop()
    await scene.queen.ack(message, "retry")
    answer = await scene.queen.admin.move_message_to_dlq(message["partitionId"], "t0")
    assert answer["success"] is True, answer
    assert await scene.drain() == [{"n": 1}]
    letters = await scene.queue().dlq().get()
    assert [one["transactionId"] for one in letters["messages"]] == ["t0"], letters


async def the_status_counts(scene: Scene) -> None:
    await _one_done_of_three(scene)
    admin = scene.queen.admin
    answer = await admin.get_status()
    assert answer["messages"]["total"] >= 3, answer
    answer = await admin.get_queue_stats(limit=1000)
    assert _mine(answer["queues"], "name", scene.name)["messages"]["total"] == 3, answer
    answer = await admin.get_queue_detail(scene.name)
    assert answer["queue"]["name"] == scene.name, answer
    assert answer["totals"]["messages"]["total"] == 3, answer
    answer = await admin.get_analytics(interval="minute")
    assert isinstance(answer, dict) and answer, answer


async def groups_are_listed_and_shown(scene: Scene) -> None:
    await _one_done_of_three(scene)
    admin = scene.queen.admin
    await admin.refresh_consumer_stats()
    groups = await admin.list_consumer_groups()
    assert any(one["name"] == "g" and scene.name in one["topics"] for one in groups), groups
    answer = await admin.get_consumer_group("g")
    (row,) = answer[scene.name]["partitions"]
    assert row["partition"] == "Default" and row["offsetLag"] == 2, answer
    lagging = await admin.get_lagging_consumers(0)
    assert isinstance(lagging, list), lagging
    assert await admin.get_lagging_consumers(100_000_000) == []


async def a_group_is_moved(scene: Scene) -> None:
    await _one_done_of_three(scene)
    admin = scene.queen.admin
    answer = await admin.seek_consumer_group("g", scene.name, {"toEnd": True})
    assert answer["success"] is True, answer
    assert await scene.drain(group="g") == []
    start = {"timestamp": "2001-01-01T00:00:00Z"}
    answer = await admin.seek_consumer_group("g", scene.name, start)
    assert answer["success"] is True, answer
    assert await scene.drain(group="g") == [{"n": 0}, {"n": 1}, {"n": 2}]


async def a_group_is_deleted_and_starts_anew(scene: Scene) -> None:
    await _one_done_of_three(scene)
    answer = await scene.queen.admin.delete_consumer_group_for_queue("g", scene.name)
    assert answer["success"] is True, answer
    assert len(await scene.drain(group="g")) == 3
    # A name of the scenario's own: this call is about all queues.
    group = f"g-{scene.name}"
    await scene.drain(group=group)
    answer = await scene.queen.delete_consumer_group(group)
    assert answer["success"] is True, answer
    assert len(await scene.drain(group=group)) == 3


async def the_start_of_a_group_is_changed(scene: Scene) -> None:
    await scene.queue().push({"n": 1})
    group = f"g-{scene.name}"
    call = scene.queue().group(group).subscription_mode("new").wait(False)
    assert await call.pop() == []
    answer = await scene.queen.update_consumer_group_timestamp(group, "2001-01-01T00:00:00Z")
    assert answer["success"] is True, answer


async def the_server_tells_how_it_is(scene: Scene) -> None:
    admin = scene.queen.admin
    answer = await admin.health()
    assert answer["status"] == "healthy" and answer["database"] == "connected", answer
    # The client reads JSON, or nothing: text for Prometheus is None to it.
    answer = await admin.metrics()
    assert answer is None or isinstance(answer, dict), answer
    for call in (admin.get_system_metrics, admin.get_worker_metrics):
        answer = await call()
        assert isinstance(answer, dict) and answer, answer


@only("0.15.0")
async def postgresql_tells_how_it_is(scene: Scene) -> None:
    answer = await scene.queen.admin.get_postgres_stats()
    assert isinstance(answer, dict) and answer, answer


@only("0.15.0")
async def pops_are_held_back(scene: Scene) -> None:
    """2.6.0 no longer has the calls for maintenance."""
    admin = scene.queen.admin
    await scene.queue().push({"n": 1})
    assert (await admin.get_pop_maintenance_mode())["popMaintenanceMode"] is False
    try:
        answer = await admin.set_pop_maintenance_mode(True)
        assert answer["popMaintenanceMode"] is True, answer
        assert await scene.queue().timeout_millis(20_000).pop() == []
    finally:
        await admin.set_pop_maintenance_mode(False)
    assert await scene.drain() == [{"n": 1}]


@only("0.15.0")
async def a_push_outlasts_a_short_maintenance(scene: Scene) -> None:
    """It waits in the spool of the server, and is stored when maintenance ends."""
    admin = scene.queen.admin
    try:
        answer = await admin.set_maintenance_mode(True)
        assert answer["maintenanceMode"] is True, answer
        assert (await admin.get_maintenance_mode())["maintenanceMode"] is True
        (result,) = await _push(scene, {"n": 1})
        assert result["status"] == "buffered", result
        assert await scene.drain() == []
    finally:
        await admin.set_maintenance_mode(False)
    (message,) = await scene.queue().wait(True).pop()
    assert message["data"] == {"n": 1}, message

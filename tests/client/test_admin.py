"""Every call of operators, once."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from queen import Message, Queen
from queen.client.admin import Admin
from queen.errors import Forbidden, NotFound, Unauthenticated
from tests.conftest import ServerProcess


class Noted:
    """The admin calls, and which of them were made."""

    made: ClassVar[set[str]] = set()

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:
        Noted.made.add(name)
        return getattr(self._admin, name)


@pytest.fixture
async def admin(queen: Queen) -> AsyncIterator[Noted]:
    yield Noted(queen.admin)


async def test_everything_about_one_queue(
    queen: Queen, admin: Noted, queue: str, start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    await queen.queue(queue).namespace(f"n-{queue}").task(f"t-{queue}").create()
    base = queen.queue(queue).group(queue)
    await base.push([Message(n, transaction_id=f"t{n}") for n in range(5)])
    (one,) = await base.pop()
    await one.trace({"n": 1}, names=queue)
    await _look_around(admin, queue)
    await _messages(queen, admin, queue, one.partition_id)
    await _schedules(admin, queue)
    await _groups(admin, queue)
    await _switches(admin)
    await _tokens(start_server, dsn)
    public = {name for name, _ in inspect.getmembers(Admin, inspect.iscoroutinefunction)}
    assert {name for name in public if not name.startswith("_")} <= Noted.made


async def test_answers_are_found_in_either_spelling(queen: Queen, queue: str) -> None:
    await queen.queue(queue).group("g").push([{"someKey": 1}])
    (message,) = await queen.queue(queue).group("g").pop()
    (group,) = [one for one in await queen.admin.groups() if one["queue_name"] == queue]
    assert group["queueName"] == group.get("queue_name") == queue
    assert "queue_name" in group
    assert "no_such_key" not in group
    assert group.get("noSuchKey", 7) == 7
    with pytest.raises(KeyError):
        group["no_such_key"]
    await message.trace({"n": 1}, names=queue)
    (trace,) = (await queen.admin.traces_by_name(queue))["traces"]
    assert trace["queueName"] == trace["queue_name"] == queue
    # What users have pushed is theirs.
    stored = await queen.admin.message(message.partition_id, message.transaction_id)
    assert "some_key" not in (stored.get("data") or stored["payload"])


async def _look_around(admin: Noted, queue: str) -> None:
    assert (await admin.health())["status"] == "healthy"
    assert isinstance(await admin.metrics(), dict)
    assert (await admin.steps(queue))["steps"] == []
    assert "queues" in await admin.overview()
    assert "databaseBytes" in await admin.storage()
    assert (await admin.doctor())["findings"]
    assert queue in str(await admin.queues(limit=1000))
    changed = await admin.alter_queue(queue, options={"ttl": 0})
    assert changed["options"]["ttl"] == 0
    assert "ttl" in str(await admin.queue_options(queue))
    assert (await admin.queue(queue))["name"] == queue
    assert f"n-{queue}" in str(await admin.namespaces())
    assert f"t-{queue}" in str(await admin.tasks())
    assert "Default" in str(await admin.partitions(queue))
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert isinstance(await admin.status(), dict)
    assert isinstance(await admin.analytics(**{"from": hour_ago}), dict)
    assert (await admin.traces_by_name(queue))["total"] == 1
    assert queue in str(await admin.trace_names(limit=1000))
    streams = (await admin.streams(limit=1000))["streams"]
    assert (await admin.stream_stats())["totalStreams"] >= min(len(streams), 1)


async def _messages(queen: Queen, admin: Noted, queue: str, partition_id: str) -> None:
    assert len((await admin.messages(queue=queue))["messages"]) == 5
    assert (await admin.message(partition_id, "t3"))["transactionId"] == "t3"
    assert len((await admin.traces(partition_id, "t0"))["traces"]) == 1
    await admin.move_to_dlq(partition_id, "t0", queue)
    assert (await queen.queue(queue).dlq().get()).total == 1
    await admin.retry_message(partition_id, "t0")
    await admin.delete_message(partition_id, "t4")
    with pytest.raises(NotFound):
        await admin.message(partition_id, "t4")
    await queen.queue(queue).push(Message(1, transaction_id="later", delay=3600))
    assert "later" in str(await admin.scheduled(queue))
    await admin.cancel_scheduled(queue, "later")
    assert "later" not in str(await admin.scheduled(queue))


async def _schedules(admin: Noted, queue: str) -> None:
    await admin.define_schedule(queue, queue, "0 0 1 1 *", {"n": 1}, zone="Europe/Berlin")
    assert queue in str(await admin.schedules(queue))
    assert (await admin.schedule(queue))["cron"] == "0 0 1 1 *"
    assert len((await admin.schedule_ticks(queue, 3))["ticks"]) == 3
    await admin.pause_schedule(queue)
    await admin.resume_schedule(queue)
    await admin.delete_schedule(queue)
    with pytest.raises(NotFound):
        await admin.schedule(queue)


async def _groups(admin: Noted, queue: str) -> None:
    await admin.share(queue, queue)
    await admin.order(queue, queue)
    assert queue in str(await admin.groups(limit=1000))
    assert queue in str(await admin.group(queue))
    await admin.lagging(0)
    await admin.pause(queue, queue)
    await admin.resume(queue, queue)
    for to in ("beginning", "end", datetime.now(UTC)):
        await admin.seek(queue, queue, to=to, dry_run=True)
    await admin.seek(queue, queue, to="beginning", partition="Default")
    await admin.delete_group(queue, queue)
    await admin.delete_group(queue, delete_metadata=False)
    await admin.clear_queue(queue, "Default")
    await admin.clear_queue(queue)
    assert await _is_empty(admin, queue)


async def _is_empty(admin: Noted, queue: str) -> bool:
    return not (await admin.messages(queue=queue))["messages"]


async def _switches(admin: Noted) -> None:
    assert (await admin.spool())["database"] == "connected"
    assert (await admin.spool_quarantine())["records"] == []
    assert await admin.retry_spooled() == await admin.drop_spooled() == {"records": 0}
    assert (await admin.maintenance())["maintenanceMode"] is False
    assert isinstance(await admin.maintenance(False), dict)
    assert isinstance(await admin.pop_maintenance(), dict)
    assert isinstance(await admin.pop_maintenance(False), dict)


def _admin_token(dsn: str) -> str:
    command = [str(Path(sys.executable).parent / "queen"), "token", "create", "--name", "test"]
    made = subprocess.run(
        [*command, "--role", "admin", "--database-url", dsn],
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.split()[-1]


async def _tokens(start_server: Callable[..., ServerProcess], dsn: str) -> None:
    guarded = start_server("--database-url", dsn, "--auth", "tokens")
    secret = _admin_token(dsn)
    async with Queen(guarded.url, token=secret) as queen:
        noted = Noted(queen.admin)
        token = await noted.create_token("reader", "read-only")
        assert "reader" in str(await noted.tokens())
        async with Queen(guarded.url, token=token["token"]) as reader:
            with pytest.raises(Forbidden):
                await reader.queue("any").push(1)
        await noted.revoke_token(token["id"])
    async with Queen(guarded.url) as nobody:
        with pytest.raises(Unauthenticated):
            await nobody.admin.overview()

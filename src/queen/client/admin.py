"""What operators ask for: lists, states, and the switches.

Answers are what the server sends, decoded: see the HTTP reference for their fields. Keys are found
in the spelling of the wire and in Python's: `row["queueName"]` is `row["queue_name"]`.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

from queen.client.payloads import encode_payload
from queen.client.transport.wire_format import camel, instant

if TYPE_CHECKING:
    from queen.client.queen import Queen

Json = Any
_ROOT = "/api/v1"


def _path(*parts: str, **query: Any) -> str:
    path = "/".join((_ROOT, *(quote(part, safe="") for part in parts)))
    given = {camel(name): _text(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _group_path(group: str, queue: str | None) -> tuple[str, ...]:
    """Return the path of a group, in one queue or in all."""
    return ("consumer-groups", group, *(("queues", queue) if queue is not None else ()))


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return instant(value) if isinstance(value, datetime) else value


class Admin:
    """What operators ask for: `queen.admin`. Answers are those of the HTTP reference, decoded;
    their keys are found in its spelling and in Python's (`queueName`, `queue_name`)."""

    def __init__(self, queen: Queen) -> None:
        self._queen = queen

    async def _get(self, *parts: str, **query: Any) -> Json:
        return await self._queen.request("GET", _path(*parts, **query))

    async def _post(self, *parts: str, body: Any = None) -> Json:
        return await self._queen.request("POST", _path(*parts), {} if body is None else body)

    async def _delete(self, *parts: str, **query: Any) -> Json:
        return await self._queen.request("DELETE", _path(*parts, **query))

    # ---- the server ----

    async def health(self) -> Json:
        """Whether the server and its database are well, and its version."""
        return await self._queen.request("GET", "/health")

    async def doctor(self) -> Json:
        """What is wrong with the server and its database, and what to do."""
        return await self._get("system", "doctor")

    async def storage(self) -> Json:
        """What is stored, which queues keep everything, and how long the disk lasts."""
        return await self._get("status", "storage")

    async def metrics(self) -> Json:
        """The counters of the server as JSON."""
        return await self._queen.request("GET", "/metrics")

    async def steps(self, queue: str) -> Json:
        """When lone messages of a queue were where, since this was asked last."""
        return await self._get("system", "steps", queue=queue)

    async def maintenance(self, enabled: bool | None = None) -> Json:
        """Read, or switch, whether pushes are held back."""
        if enabled is None:
            return await self._get("system", "maintenance")
        return await self._post("system", "maintenance", body={"enabled": enabled})

    async def pop_maintenance(self, enabled: bool | None = None) -> Json:
        """Read, or switch, whether pops are answered with nothing."""
        if enabled is None:
            return await self._get("system", "maintenance", "pop")
        return await self._post("system", "maintenance", "pop", body={"enabled": enabled})

    # ---- the spool ----

    async def spool(self) -> Json:
        """What waits in the spool of the server, and whether its database is away."""
        return await self._get("spool")

    async def spool_quarantine(
        self, *, limit: int = 100, offset: int = 0, payloads: bool = False
    ) -> Json:
        """Spooled records that can never be stored, with the reasons."""
        return await self._get("spool", "quarantine", limit=limit, offset=offset, payloads=payloads)

    async def retry_spooled(self, ids: list[str] | None = None) -> Json:
        """Spool such records again, all of them by default."""
        return await self._post("spool", "quarantine", "retry", body={"ids": ids})

    async def drop_spooled(self, ids: list[str] | None = None) -> Json:
        """Forget such records for good, all of them by default."""
        return await self._post("spool", "quarantine", "drop", body={"ids": ids})

    # ---- queues ----

    async def overview(self) -> Json:
        """Counts over all queues."""
        return await self._get("resources", "overview")

    async def queues(self, **query: Any) -> Json:
        """The queues with their counts; `limit`, `offset`, and other filters of the route."""
        return await self._get("resources", "queues", **query)

    async def queue(self, name: str, **query: Any) -> Json:
        """One queue: its partitions, groups and counts."""
        return await self._get("resources", "queues", name, **query)

    async def queue_options(self, name: str) -> Json:
        """All options of a queue, each with its default, origin, meaning and limits."""
        return await self._get("resources", "queues", name, "options")

    async def alter_queue(self, name: str, **change: Any) -> Json:
        """Change what is named of a queue: `options`, `namespace`, `task`; with `create=True` it
        may be new, with `revision` it must be the one that was looked at."""
        path = _path("resources", "queues", name, "options")
        return await self._queen.request("PATCH", path, change)

    async def clear_queue(self, name: str, partition: str | None = None) -> Json:
        """Delete the messages of a queue, or of one of its partitions; the queue stays."""
        return await self._delete("queues", name, "clear", partition=partition)

    async def namespaces(self) -> Json:
        """All namespaces with their counts."""
        return await self._get("resources", "namespaces")

    async def tasks(self) -> Json:
        """All tasks with their counts."""
        return await self._get("resources", "tasks")

    async def partitions(self, queue: str, **query: Any) -> Json:
        """The partitions of a queue, in pages."""
        return await self._get("resources", "partitions", queue=queue, **query)

    async def status(self, **query: Any) -> Json:
        """What is going on: throughput, lag, leases, dead letters."""
        return await self._get("status", **query)

    async def analytics(self, **query: Any) -> Json:
        """The same over time, in steps."""
        return await self._get("status", "analytics", **query)

    # ---- messages ----

    async def messages(self, **query: Any) -> Json:
        """Stored messages that match: `queue`, `partition`, `status`, `limit`, and so on."""
        return await self._get("messages", **query)

    async def message(self, partition_id: str, transaction_id: str) -> Json:
        """One stored message with its payload and what became of it."""
        return await self._get("messages", partition_id, transaction_id)

    async def delete_message(self, partition_id: str, transaction_id: str) -> Json:
        """Erase one message for good."""
        return await self._delete("messages", partition_id, transaction_id)

    async def retry_message(self, partition_id: str, transaction_id: str) -> Json:
        """Send a dead letter back to the group that gave it up."""
        return await self._post("messages", partition_id, transaction_id, "retry")

    async def move_to_dlq(
        self, partition_id: str, transaction_id: str, group: str | None = None
    ) -> Json:
        """Set one message aside by hand."""
        body = {"consumerGroup": group}
        return await self._post("messages", partition_id, transaction_id, "dlq", body=body)

    async def schedules(
        self, queue: str | None = None, *, limit: int = 100, offset: int = 0
    ) -> Json:
        """What is pushed again and again, by name."""
        return await self._get("schedules", queue=queue, limit=limit, offset=offset)

    async def schedule(self, name: str) -> Json:
        """One schedule, and how it is doing."""
        return await self._get("schedules", name)

    async def define_schedule(
        self,
        name: str,
        queue: str,
        cron: str,
        payload: Any = None,
        *,
        zone: str = "UTC",
        partition: str | None = None,
        catch_up: str = "last",
        catch_up_limit: int = 100,
        replace: bool = True,
    ) -> Json:
        """Push a payload whenever `cron` comes due in a zone; see `queue.cron`."""
        body = {
            "name": name,
            "queue": queue,
            "cron": cron,
            "payload": msgspec.Raw(encode_payload(payload)),
            "zone": zone,
            "partition": partition,
            "catchUp": catch_up,
            "catchUpLimit": catch_up_limit,
            "replace": replace,
        }
        return await self._post("schedules", body=body)

    async def schedule_ticks(self, name: str, count: int = 10) -> Json:
        """When a schedule comes due next."""
        return await self._get("schedules", name, "next", count=count)

    async def pause_schedule(self, name: str) -> Json:
        """Let a schedule rest."""
        return await self._post("schedules", name, "pause")

    async def resume_schedule(self, name: str) -> Json:
        """Let it go on with the tick that comes next."""
        return await self._post("schedules", name, "resume")

    async def delete_schedule(self, name: str) -> Json:
        """Delete a schedule; what it has pushed stays."""
        return await self._delete("schedules", name)

    async def scheduled(self, queue: str | None = None, **query: Any) -> Json:
        """Messages that wait for their time."""
        return await self._get("scheduled", queue=queue, **query)

    async def cancel_scheduled(self, queue: str, transaction_id: str) -> Json:
        """Take back a message whose time has not come."""
        return await self._delete("scheduled", queue, transaction_id)

    # ---- streams ----

    async def streams(self, **query: Any) -> Json:
        """The streams with how far they are; `limit` and `offset`."""
        return await self._get("resources", "streams", **query)

    async def stream_stats(self) -> Json:
        """Counts over all streams."""
        return await self._get("resources", "streams", "stats")

    # ---- groups ----

    async def groups(self, **query: Any) -> Json:
        """All groups with their lag, one entry for each queue they read."""
        return await self._get("consumer-groups", **query)

    async def group(self, group: str, **query: Any) -> Json:
        """How far one group is in each partition."""
        return await self._get("consumer-groups", group, **query)

    async def lagging(self, min_lag_seconds: int = 60) -> Json:
        """The partitions that wait longest, of all groups."""
        return await self._get("consumer-groups", "lagging", min_lag_seconds=min_lag_seconds)

    async def pause(self, group: str, queue: str | None = None) -> Json:
        """Give a group nothing more, from one queue or from all, until it is resumed."""
        return await self._post(*_group_path(group, queue), "pause")

    async def resume(self, group: str, queue: str | None = None) -> Json:
        """Let a paused group go on."""
        return await self._post(*_group_path(group, queue), "resume")

    async def share(self, group: str, queue: str | None = None) -> Json:
        """Let many consumers of a group work on one partition at once, in no order."""
        return await self._post(*_group_path(group, queue), "share")

    async def order(self, group: str, queue: str | None = None) -> Json:
        """Let a group read each partition in order again."""
        return await self._post(*_group_path(group, queue), "order")

    async def seek(
        self,
        group: str,
        queue: str,
        *,
        to: datetime | str,
        partition: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Move a group to a time, to the `beginning` or to the `end`.

        A dry run says how many messages would be read again and changes nothing.
        """
        target: dict[str, Any] = {"timestamp": _text(to)}
        if to in ("beginning", "end"):
            target = {"toBeginning" if to == "beginning" else "toEnd": True}
        parts = ("consumer-groups", group, "queues", queue)
        if partition is not None:
            parts += ("partitions", partition)  # type: ignore[assignment]
        return await self._post(*parts, "seek", body={**target, "dryRun": dry_run})

    async def delete_group(
        self, group: str, queue: str | None = None, *, delete_metadata: bool = True
    ) -> Json:
        """Forget how far a group is, in one queue or in all, and where it subscribed."""
        return await self._delete(*_group_path(group, queue), delete_metadata=delete_metadata)

    # ---- traces ----

    async def traces(self, partition_id: str, transaction_id: str) -> Json:
        """What was recorded about one message."""
        return await self._get("traces", partition_id, transaction_id)

    async def traces_by_name(self, name: str, **query: Any) -> Json:
        """What was recorded under a name, over all queues."""
        return await self._get("traces", "by-name", name, **query)

    async def trace_names(self, **query: Any) -> Json:
        """The names under which something was recorded."""
        return await self._get("traces", "names", **query)

    # ---- tokens ----

    async def tokens(self, **query: Any) -> Json:
        """All tokens, without their secrets; `limit` and `offset`."""
        return await self._get("tokens", **query)

    async def create_token(
        self,
        name: str,
        role: str,
        namespaces: list[str] | None = None,
        expires_in_s: int | None = None,
    ) -> Json:
        """Make a token; its secret is in this answer and nowhere else."""
        body = {
            "name": name,
            "role": role,
            "namespaces": namespaces,
            "expiresInSeconds": expires_in_s,
        }
        return await self._post("tokens", body=body)

    async def revoke_token(self, token_id: str) -> Json:
        """Refuse a token from now on."""
        return await self._delete("tokens", token_id)

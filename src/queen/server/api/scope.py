"""What a caller may see: the one place where names and ids become queues.

A caller that is limited to namespaces gets `NotFound` for everything else, whether it exists
or not, so that asking tells nothing. A queue that does not exist yet belongs to the namespace
that its name would give it. Everybody else passes through: one comparison.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from queen.core.names import labels_of
from queen.errors import NotFound
from queen.server.auth.access import Caller
from queen.server.protocol.http import check_name
from queen.service.broker import Broker
from queen.service.catalog import Partition, Queue
from queen.service.streams.definitions import Stream


async def queue_for(broker: Broker, caller: Caller, name: str) -> Queue | None:
    """Return a queue, None if there is none; raises `NotFound` if it is not the caller's."""
    queue = await broker.catalog.queue(name)
    if caller.namespaces is not None:
        namespace = labels_of(name)[0] if queue is None else queue.namespace
        if not caller.sees(namespace):
            raise NotFound(f"Queue {name!r} not found")
    return queue


async def existing_queue_for(broker: Broker, caller: Caller, name: str) -> Queue:
    """Return a queue that exists and is the caller's to see; raises `NotFound` otherwise."""
    queue = await queue_for(broker, caller, name)
    if queue is None:
        raise NotFound(f"Queue {name!r} not found")
    return queue


async def hidden_queues(broker: Broker, caller: Caller, names: Iterable[str]) -> set[str]:
    """Return those of some names that a caller may not use."""
    hidden: set[str] = set()
    if caller.namespaces is not None:
        for name in set(names):
            try:
                await queue_for(broker, caller, name)
            except NotFound:
                hidden.add(name)
    return hidden


async def partitions_for(
    broker: Broker, caller: Caller, ids: Iterable[int]
) -> dict[int, Partition]:
    """Return partitions by id; those that do not exist or are not the caller's are left out."""
    found = await broker.catalog.partitions(ids)
    if caller.namespaces is None:
        return found
    hidden = await hidden_queues(broker, caller, {one.queue.name for one in found.values()})
    return {key: one for key, one in found.items() if one.queue.name not in hidden}


def listed(namespaces: frozenset[str] | None) -> list[str] | None:
    """Return namespaces as statements take them; None is all."""
    return None if namespaces is None else sorted(namespaces)


async def check_lease(broker: Broker, caller: Caller, lease_id: uuid.UUID) -> None:
    """Raise `NotFound` when a lease holds something that the caller may not see."""
    if caller.namespaces is None:
        return
    held = {partition for partition, _ in await broker.cursors_of(lease_id)}
    if len(await partitions_for(broker, caller, held)) < len(held):
        raise NotFound("Lease not found or expired")


async def stream_for(broker: Broker, caller: Caller, name: str) -> Stream:
    """Return a stream that exists and is the caller's to see."""
    check_name("stream", name)
    stream = await broker.streams.get(name)
    check_stream_is_seen(caller, stream)
    return stream


def check_stream_is_seen(caller: Caller, stream: Stream) -> None:
    if not caller.sees(stream.namespace):
        raise NotFound("Stream not found")

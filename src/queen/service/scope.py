"""What a caller may see: the one place where names and ids become queues.

A caller that is limited to namespaces gets `NotFound` for everything else, whether it exists
or not, so that asking tells nothing. A queue that does not exist yet belongs to the namespace
that its name would give it. Everybody else passes through: one comparison.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Protocol

from queen.core.names import labels_of, reason_against_name
from queen.errors import BadRequest, NotFound
from queen.service.catalog import Catalog, Partition, Queue
from queen.service.consume.leases import Leases
from queen.service.streams.definitions import Definitions, Stream


class Viewer(Protocol):
    """Who asks, as far as services have to know."""

    @property
    def subject(self) -> str | None: ...

    @property
    def namespaces(self) -> frozenset[str] | None:
        """The only namespaces that exist for it; None means all."""

    def sees(self, namespace: str) -> bool: ...


class Scope:
    def __init__(self, catalog: Catalog, leases: Leases, streams: Definitions) -> None:
        self._catalog = catalog
        self._leases = leases
        self._streams = streams

    async def queue(self, viewer: Viewer, name: str) -> Queue | None:
        """Return a queue, None if there is none; raises `NotFound` if it is not the viewer's."""
        queue = await self._catalog.queue(name)
        if viewer.namespaces is not None:
            namespace = labels_of(name)[0] if queue is None else queue.namespace
            if not viewer.sees(namespace):
                raise NotFound(f"Queue {name!r} not found")
        return queue

    def is_seen(self, viewer: Viewer, name: str) -> bool:
        """Whether a queue is the viewer's to see, as far as that is known without a question."""
        if viewer.namespaces is None:
            return True
        queue = self._catalog.cached_queue(name)
        return queue is not None and viewer.sees(queue.namespace)

    async def existing_queue(self, viewer: Viewer, name: str) -> Queue:
        """Return a queue that exists and is the viewer's to see; raises `NotFound` otherwise."""
        queue = await self.queue(viewer, name)
        if queue is None:
            raise NotFound(f"Queue {name!r} not found")
        return queue

    async def queues_now(self, viewer: Viewer, names: Iterable[str]) -> list[Queue]:
        """Return those of some queues that exist at this moment and are the viewer's to see."""
        queues = await self._catalog.queues_now(names)
        return sorted(
            (queue for queue in queues if viewer.sees(queue.namespace)),
            key=lambda queue: queue.name,
        )

    async def hidden_queues(self, viewer: Viewer, names: Iterable[str]) -> set[str]:
        """Return those of some names that a viewer may not use."""
        hidden: set[str] = set()
        if viewer.namespaces is not None:
            for name in set(names):
                try:
                    await self.queue(viewer, name)
                except NotFound:
                    hidden.add(name)
        return hidden

    async def partitions(self, viewer: Viewer, ids: Iterable[int]) -> dict[int, Partition]:
        """Return partitions by id; those that do not exist or are not the viewer's are left out."""
        partitions = await self._catalog.partitions(ids)
        if viewer.namespaces is None:
            return partitions
        names = {partition.queue.name for partition in partitions.values()}
        hidden = await self.hidden_queues(viewer, names)
        return {
            number: partition
            for number, partition in partitions.items()
            if partition.queue.name not in hidden
        }

    async def check_lease(self, viewer: Viewer, lease_id: uuid.UUID) -> None:
        """Raise `NotFound` when a lease holds something that the viewer may not see."""
        if viewer.namespaces is None:
            return
        held = {partition for partition, _ in await self._leases.cursors_of(lease_id)}
        if len(await self.partitions(viewer, held)) < len(held):
            raise NotFound("Lease not found or expired")

    async def stream(self, viewer: Viewer, name: str) -> Stream:
        """Return a stream that exists and is the viewer's to see."""
        reason = reason_against_name("stream", name)
        if reason:
            raise BadRequest(reason)
        stream = await self._streams.get(name)
        check_stream_is_seen(viewer, stream)
        return stream


def check_stream_is_seen(viewer: Viewer, stream: Stream) -> None:
    if not viewer.sees(stream.namespace):
        raise NotFound(f"Stream {stream.name!r} not found")


def listed(namespaces: frozenset[str] | None) -> list[str] | None:
    """Return namespaces as statements take them; None is all."""
    return None if namespaces is None else sorted(namespaces)

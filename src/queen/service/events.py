"""What parts of the broker tell each other, without knowing who listens.

    written            partitions have new messages, committed by this server
    written_elsewhere  the same, committed by another server that told us
    lease_ended        a lease of this server, or one it was told of, is over
    lease_released     others may have what a lease has left over
    partitions_made    a queue has new partitions
    partition_lost     the database has lost a part of a partition (a restore, a failover)
    group_missing      a claim found no such partition or group
    claim_wanted       a pop and partitions that it may claim were paired
    options_changed    queues were configured or deleted, or an index is complete
    queue_deleted      a queue is gone, with everything in it
    pops_stopped       pops are held back from now on
    maintenance_turned a switch of the maintenance was turned here
    group_deleted      a group is gone
    group_moved        a group reads from another place now
    group_resumed      a group may read what it could not a moment ago
    streams_changed    a stream was defined, changed or deleted
    windows_planned    a stream has windows that were not there before
    windows_elsewhere  the same, told by another server
    entries_changed    the groups of an entry stream have changed in a way that matters to readers
    entries_elsewhere  the same, told by another server
    jobs_finished      jobs have ended, and their results are stored
    jobs_elsewhere     the same, told by another server, which does not say which

Who listens is called at once, in the order in which it subscribed, and must neither wait nor
raise: the one who tells has committed already.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVarTuple

if TYPE_CHECKING:
    from queen.service.catalog import Partition, Queue
    from queen.service.consume.dispatch import Attempt
    from queen.service.consume.feeds import Feed

What = TypeVarTuple("What")


class Event(Generic[*What]):
    """Something that happens again and again; calling it tells everybody who subscribed."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[*What], None], ...] = ()

    def subscribe(self, listener: Callable[[*What], None]) -> None:
        self._listeners += (listener,)

    def __call__(self, *what: *What) -> None:
        for listener in self._listeners:
            listener(*what)


class Events:
    def __init__(self) -> None:
        self.written: Event[list[Partition]] = Event()
        self.written_elsewhere: Event[list[Partition]] = Event()
        # Partition, group, lease, how far the group has got, and how long (ms) the rest must wait.
        self.lease_ended: Event[Partition, str, uuid.UUID | None, int, int] = Event()
        # Partition and id of the group.
        self.lease_released: Event[Partition, int] = Event()
        self.partitions_made: Event[Queue, int] = Event()
        self.partition_lost: Event[Partition] = Event()
        self.group_missing: Event[Feed] = Event()
        self.claim_wanted: Event[Attempt] = Event()
        self.options_changed: Event[()] = Event()
        # The id of the queue.
        self.queue_deleted: Event[int] = Event()
        self.pops_stopped: Event[()] = Event()
        self.maintenance_turned: Event[()] = Event()
        # Ids of queue and group.
        self.group_deleted: Event[int, int] = Event()
        self.group_moved: Event[int, int] = Event()
        self.group_resumed: Event[int, int] = Event()
        self.streams_changed: Event[()] = Event()
        # The id of the stream.
        self.windows_planned: Event[int] = Event()
        self.windows_elsewhere: Event[int] = Event()
        # The id of the queue.
        self.entries_changed: Event[int] = Event()
        self.entries_elsewhere: Event[int] = Event()
        # The name of the queue, and the ids of the jobs.
        self.jobs_finished: Event[str, list[str]] = Event()
        self.jobs_elsewhere: Event[()] = Event()

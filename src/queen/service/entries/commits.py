"""One transaction for what a batch of commands did: records in journals, entries in the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from queen.core.frame import (
    MAX_BUILT_BYTES,
    MAX_MESSAGES,
    Segment,
    compress,
    encode_body,
    segment_of,
)
from queen.core.hashing import hash_ids
from queen.service.catalog import Partition
from queen.service.entries.payloads import messages_of
from queen.service.entries.replicas import Replica, head_of
from queen.service.log.segment_encryption import SegmentEncryption
from queen.storage.database import Record
from queen.streambroker.engine.state.events import encode


class _Built(NamedTuple):
    """A segment of entries, ready to be stored."""

    columns: Segment
    codec: int
    body: bytes
    hashes: bytes


class Commit:
    """What is to be committed for some replicas, all of which have their place."""

    def __init__(self, replicas: Sequence[Replica], encryption: SegmentEncryption) -> None:
        self.replicas = sorted(replicas, key=_id_of)
        self.records = [
            encode(replica.stream.journal) if replica.stream.journal else None
            for replica in self.replicas
        ]
        # What the database said of each replica, once it is done.
        self.rows: Sequence[Record] = ()
        self._encryption = encryption
        self.appended = sorted(
            (replica for replica in self.replicas if replica.stream.appended),
            key=lambda replica: _partition_of(replica).id,
        )
        self._segments = [self._build(replica) for replica in self.appended]

    @property
    def is_empty(self) -> bool:
        """Whether nothing has changed, and the replicas are only to be compared."""
        return not any(self.records)

    def arguments(self) -> tuple[Any, ...]:
        partitions = [_partition_of(replica) for replica in self.appended]
        part, before, counts, codecs, hashes, bodies = [], [], [], [], [], []
        for number, segments in enumerate(self._segments, 1):
            position = 0
            for built in segments:
                part.append(number)
                before.append(position)
                counts.append(built.columns.count)
                codecs.append(built.codec)
                hashes.append(built.hashes)
                bodies.append(built.body)
                position += built.columns.count
        return (
            [_id_of(replica) for replica in self.replicas],
            [replica.version for replica in self.replicas],
            [head_of(replica) for replica in self.replicas],
            self.records,
            [replica.stream.is_alive for replica in self.replicas],
            sorted({partition.queue.id for partition in partitions}),
            [partition.id for partition in partitions],
            [len(replica.stream.appended) for replica in self.appended],
            part,
            before,
            counts,
            codecs,
            hashes,
            bodies,
        )

    def segments_of(self, replica: Replica) -> list[Segment]:
        return [built.columns for built in self._segments[self.appended.index(replica)]]

    def _build(self, replica: Replica) -> list[_Built]:
        messages = messages_of(replica.stream.appended)
        partition = _partition_of(replica)
        built: list[_Built] = []
        start, size = 0, 0
        for at, (_, payload) in enumerate(messages):
            if at > start and (size + len(payload) > MAX_BUILT_BYTES or at - start >= MAX_MESSAGES):
                built.append(self._segment(partition, messages[start:at]))
                start, size = at, 0
            size += len(payload)
        built.append(self._segment(partition, messages[start:]))
        return built

    def _segment(self, partition: Partition, messages: list[tuple[bytes, bytes]]) -> _Built:
        ids = [transaction_id for transaction_id, _ in messages]
        columns = segment_of(ids, [payload for _, payload in messages])
        codec, body = compress(encode_body(columns))
        if partition.queue.options.encryption_enabled:
            codec, body = self._encryption.encrypt_segment(partition.id, codec, body)
        return _Built(columns, codec, body, hash_ids(ids).tobytes())


def _id_of(replica: Replica) -> int:
    assert replica.id is not None
    return replica.id


def _partition_of(replica: Replica) -> Partition:
    assert replica.partition is not None
    return replica.partition

"""Items of a push: each is checked, and those of one partition become one append.

Most requests are ordinary: their fields are checked column by column, and no item is looked at
by itself. What is wrong with an item is told with its index in the request.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec
from msgspec.structs import astuple

from queen.core.columns.headers import (
    HEADERS,
    headers_bytes,
    headers_text,
    reason_against_headers,
    with_trace,
)
from queen.core.names import (
    DEFAULT_PARTITION,
    MAX_TRANSACTION_ID_BYTES,
    is_uuid,
    reason_against_name,
    reason_against_transaction_id,
)
from queen.core.payload import as_line, is_shallow, longest_is_shallow, reason_against_payload
from queen.errors import InvalidItem
from queen.service.log.append import Append
from queen.wire.requests import PlainPushItem, PushItem


class Planned(NamedTuple):
    """An append, which items of the request it holds, and their transaction ids."""

    append: Append
    indexes: Sequence[int]
    ids: Sequence[str]


def plan(
    items: list[PushItem], indexes: Sequence[int], *, trusted: bool, subject: str | None = None
) -> tuple[list[Planned], list[InvalidItem], bool]:
    """Turn items into appends, one for each partition, in the order of the request.

    `trusted` says that no payload has bad bytes, bad escapes or line breaks: then, unless
    something else is unusual, no item is looked at by itself. `subject` is who sends them.
    The last value returned says whether an item names a time, which is for the caller to heed.
    """
    if subject is None and trusted and len(items) == 1 and _is_ordinary(items[0]):
        return [_plan_one(items[0], indexes)], [], False
    refused: list[InvalidItem] = []
    columns = _Columns.of(items)
    timed = columns.are_timed()
    one_partition = columns.are_one_partition()
    are_ordinary = not timed and trusted and columns.are_ordinary(one_partition)
    if not are_ordinary:
        items, indexes, refused = sift(items, indexes)
        columns = _Columns.of(items)
        one_partition = columns.are_one_partition()
    if not items:
        return [], refused, timed
    if one_partition:
        return [columns.plan(indexes, subject)], refused, timed
    groups: dict[tuple[str, str], list[int]] = {}
    for at, item in enumerate(items):
        groups.setdefault((item.queue, item.partition or DEFAULT_PARTITION), []).append(at)
    planned = [
        _plan_one(items[group[0]], (indexes[group[0]],))
        if are_ordinary and subject is None and len(group) == 1
        else _Columns.of([items[at] for at in group]).plan([indexes[at] for at in group], subject)
        for group in groups.values()
    ]
    return planned, refused, timed


def plan_plain(items: list[PlainPushItem], subject: str | None) -> list[Planned] | None:
    """Return the same for items of a body that is trusted; None unless all of them are good."""
    count, first = len(items), items[0]
    ids = [item.transactionId or str(uuid.uuid4()) for item in items]
    payloads = [item.payload for item in items]
    text = "".join(ids)
    if not text.isascii() or "\0" in text or not _are_shallow(payloads):
        return None
    keys = [(first.queue, first.partition)]
    if count > 1:
        queues = [item.queue for item in items]
        partitions = [item.partition for item in items]
        if queues.count(first.queue) < count or partitions.count(first.partition) < count:
            keys = list(zip(queues, partitions, strict=True))
    for queue, partition in keys:
        if reason_against_name("queue", queue) or reason_against_name("partition", partition):
            return None
    if len(keys) == 1:
        return [_planned(keys[0], range(count), ids, payloads, subject)]
    groups: dict[tuple[str, str], list[int]] = {}
    for at, key in enumerate(keys):
        groups.setdefault(key, []).append(at)
    return [
        _planned(key, group, [ids[at] for at in group], [payloads[at] for at in group], subject)
        for key, group in groups.items()
    ]


def _are_shallow(payloads: list[msgspec.Raw]) -> bool:
    return longest_is_shallow(max(map(len, payloads))) or all(
        longest_is_shallow(len(payload)) or is_shallow(bytes(payload)) for payload in payloads
    )


def _planned(
    key: tuple[str, str],
    indexes: Sequence[int],
    ids: list[str],
    payloads: Sequence[bytes],
    subject: str | None,
) -> Planned:
    """Return messages of one partition as one append."""
    weight = sum(map(len, payloads)) + 64 * len(ids)
    extras = None if subject is None else {"producerSub": [subject] * len(ids)}
    encoded = [transaction_id.encode() for transaction_id in ids]
    return Planned(Append(*key, encoded, payloads, weight, extras), indexes, ids)


def _is_ordinary(item: PushItem) -> bool:
    """Return whether a lone item needs no closer look."""
    given = item.transactionId
    return (
        given is not None
        and given.isascii()
        and 0 < len(given) <= MAX_TRANSACTION_ID_BYTES
        and "\0" not in given
        and item.traceId is None
        and not item.headers
        and not item.is_timed
        and longest_is_shallow(len(item.payload))
        and not reason_against_name("queue", item.queue)
        and not (item.partition is not None and reason_against_name("partition", item.partition))
    )


def _plan_one(item: PushItem, indexes: Sequence[int]) -> Planned:
    transaction_id = cast("str", item.transactionId)
    partition = item.partition or DEFAULT_PARTITION
    weight = len(item.payload) + 64
    append = Append(item.queue, partition, (transaction_id.encode(),), (item.payload,), weight)
    return Planned(append, indexes, (transaction_id,))


class _Columns(NamedTuple):
    """The fields of all items, field by field: checked together, not one by one."""

    queues: tuple[str, ...]
    payloads: tuple[bytes, ...]
    partitions: tuple[str | None, ...]
    ids: tuple[str | None, ...]
    traces: tuple[str | None, ...]
    headers: tuple[dict[str, str] | None, ...]
    times: tuple[str | None, ...]
    delays: tuple[float | None, ...]
    delays_ms: tuple[float | None, ...]

    @classmethod
    def of(cls, items: Sequence[PushItem]) -> _Columns:
        return cls(*(zip(*map(astuple, items), strict=True) if items else ((),) * 9))

    def are_one_partition(self) -> bool:
        count, queues, partitions = len(self.ids), self.queues, self.partitions
        return (
            count > 0
            and queues.count(queues[0]) == count
            and partitions.count(partitions[0]) == count
        )

    def are_timed(self) -> bool:
        """Return whether an item says when it is due."""
        unset = self.times.count(None) + self.delays.count(None) + self.delays_ms.count(None)
        return unset < 3 * len(self.ids)

    def are_ordinary(self, one_partition: bool) -> bool:
        """Return whether nothing calls for a closer look at single items."""
        count = len(self.ids)
        unset = self.traces.count(None) + self.headers.count(None)
        if not count or self.ids.count(None) or unset != 2 * count:
            return False
        lengths = list(map(len, cast("tuple[str, ...]", self.ids)))
        text = "".join(cast("tuple[str, ...]", self.ids))
        return (
            text.isascii()
            and "\0" not in text
            and min(lengths) > 0
            and max(lengths) <= MAX_TRANSACTION_ID_BYTES
            and longest_is_shallow(max(map(len, self.payloads)))
            and self._names_are_good(one_partition)
        )

    def _names_are_good(self, one_partition: bool) -> bool:
        queues = self.queues[:1] if one_partition else set(self.queues)
        partitions = self.partitions[:1] if one_partition else set(self.partitions)
        return not any(reason_against_name("queue", name) for name in queues) and not any(
            name is not None and reason_against_name("partition", name) for name in partitions
        )

    def plan(self, indexes: Sequence[int], subject: str | None) -> Planned:
        """Return the items as one append; all of them go to the same partition."""
        ids = cast("Sequence[str]", self.ids)
        if self.ids.count(None):
            ids = [given if given is not None else str(uuid.uuid4()) for given in self.ids]
        extras: dict[str, Sequence[str | None]] = {}
        if self.traces.count(None) < len(ids):
            extras["traceId"] = self.traces
        if subject is not None:
            extras["producerSub"] = [subject] * len(ids)
        weight = sum(map(len, self.payloads)) + 64 * len(ids)
        if any(self.headers):
            extras[HEADERS] = list(map(headers_text, self.headers))
            weight += headers_bytes(extras[HEADERS])
        partition = self.partitions[0] or DEFAULT_PARTITION
        encoded = list(map(str.encode, ids))
        append = Append(self.queues[0], partition, encoded, self.payloads, weight, extras or None)
        return Planned(append, indexes, ids)


def add_trace(items: Iterable[PushItem], trace: Mapping[str, str]) -> None:
    """Give the trace of a request to the items that have none. What is wrong with their headers is
    not told here."""
    for item in items if trace else ():
        item.headers = with_trace(item.headers, trace)


def sift(
    items: list[PushItem], indexes: Sequence[int]
) -> tuple[list[PushItem], list[int], list[InvalidItem]]:
    """Return the items that can be stored, their indexes in the request, and what is wrong with
    the others."""
    kept, kept_indexes, refused = [], [], []
    for index, item in zip(indexes, items, strict=True):
        reason = _reason_against(item)
        if reason:
            refused.append(InvalidItem(index, reason))
            continue
        item.payload = msgspec.Raw(as_line(bytes(item.payload)))
        kept.append(item)
        kept_indexes.append(index)
    return kept, kept_indexes, refused


def _reason_against(item: PushItem) -> str | None:
    reason = reason_against_name("queue", item.queue)
    if reason is None and item.partition is not None:
        reason = reason_against_name("partition", item.partition)
    if reason is None and item.transactionId is not None:
        reason = reason_against_transaction_id(item.transactionId)
    if reason is None and item.traceId is not None and not is_uuid(item.traceId):
        reason = "traceId is not a UUID"
    if reason is None and item.headers:
        reason = reason_against_headers(item.headers)
    return reason or reason_against_payload(bytes(item.payload))

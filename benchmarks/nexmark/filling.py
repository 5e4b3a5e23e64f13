"""A history of events in queues: written when it happened, as far as anybody can tell.

Events are pushed as segment frames, a second of them at a time; then their segments are moved to
that second. Everything lies hours back, so all of it is sealed and every window of it is over.
"""

from __future__ import annotations

import http.client
import itertools
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import psycopg

from benchmarks.frames import MEDIA_TYPE, frame
from benchmarks.nexmark.events import AUCTION, BID, PERSON, Event, payload

_MOST_IN_FRAME = 5000
_MOVE = """
update queen.segments s set created_at = %s from queen.queues q
where q.id = s.queue_id and q.name = any(%s) and s.created_at > %s
"""


class Queues(NamedTuple):
    """The three queues of one history."""

    persons: str
    auctions: str
    bids: str
    # The instant of the first event.
    begin: datetime

    def of(self, kind: str) -> str:
        return {PERSON: self.persons, AUCTION: self.auctions, BID: self.bids}[kind]


def new_queues() -> Queues:
    own = uuid.uuid4().hex[:8]
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    names = {f"{kind}s": f"nexmark-{own}-{kind}s" for kind in (PERSON, AUCTION, BID)}
    return Queues(**names, begin=hour - timedelta(hours=12))


def fill(
    url: str,
    database: psycopg.Connection[Any],
    history: Iterable[Event],
    queues: Queues,
    partitions: int,
) -> None:
    """Push a history. The connection commits by itself."""
    parts = urlsplit(url)
    assert parts.hostname
    broker = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    names = [queues.persons, queues.auctions, queues.bids]
    for written_ms, many in _seconds(history):
        body = b"".join(_frames(many, queues, partitions))
        broker.request("POST", "/api/v1/push", body, {"content-type": MEDIA_TYPE})
        answer = broker.getresponse()
        said = answer.read()
        assert answer.status == 201, said[:500]
        # What is not in the past yet is what was just pushed.
        written = queues.begin + timedelta(milliseconds=written_ms)
        database.execute(_MOVE, (written, names, datetime.now(UTC) - timedelta(hours=1)))
    broker.close()


def _seconds(history: Iterable[Event]) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events that are written at the same time, and when that is."""
    for written_ms, many in itertools.groupby(history, key=lambda event: event.written_ms):
        yield written_ms, list(many)


def _frames(many: list[Event], queues: Queues, partitions: int) -> Iterator[bytes]:
    lanes: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for event in many:
        text = msgspec.json.encode(payload(event, queues.begin))
        lanes[event.kind, event.key % partitions].append(text)
    for (kind, lane), texts in lanes.items():
        for first in range(0, len(texts), _MOST_IN_FRAME):
            part = texts[first : first + _MOST_IN_FRAME]
            ids = [uuid.uuid4().hex for _ in part]
            yield frame(queues.of(kind), f"p{lane}", ids, part)

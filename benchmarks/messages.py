"""Messages: varied, never sent twice, and already encoded when the clock starts.

A load generator that builds JSON is slower than the server it measures. Here every message
has the same width, so a request is a table of bytes that is refilled in place:

    {"items":[ row row row ... row ]}

    row  {"queue":"q","partition":"p0000017","payload":{...},"transactionId":"HHHHHHHHTTTTTTTT"},
         └──────────────────── copied from the pool ─────────────────────────┘
                                   ▲                                                  ▲
                         one strided write                                  one strided write

The pool holds `POOL` rows with random payloads and random heads of ids, and as many random tails.
Heads are taken in turn; each time they have gone round, the tails shift by one row. No pair comes
twice before POOL x POOL messages, the ids stay as random as real ones (a compressor finds nothing
that it would not find in production), and a request of 100 costs three copies, not a hundred
formatted strings.
"""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

PAYLOAD_BYTES = 130
POOL = 8_192

_HALF_BYTES = 18
_PARTITION_BYTES = 8
# Coprime to every power of ten: neighbours in time are not neighbours in the partitions table.
_PARTITION_STRIDE = 61_803

_WORDS = [
    "parcel",
    "delayed",
    "customs",
    "gate",
    "north",
    "driver",
    "scanned",
    "twice",
    "label",
    "torn",
    "return",
    "refund",
    "partial",
    "voucher",
    "applied",
    "loyal",
    "first",
    "order",
    "gift",
    "wrap",
    "blue",
    "medium",
    "cotton",
    "spare",
    "key",
    "left",
    "porch",
    "call",
    "before",
    "noon",
    "fragile",
    "glass",
    "upright",
    "cold",
    "chain",
    "express",
    "night",
    "shift",
    "depot",
    "seven",
    "lane",
    "door",
]
_CITIES = ("Antwerp", "Bergen", "Cork", "Dresden", "Espoo", "Faro", "Ghent", "Hamburg", "Izmir")

Bytes2D = NDArray[np.uint8]


def partition_name(number: int) -> str:
    return f"p{number:07d}"


def partition_for(serial: int, partitions: int) -> int:
    """The partition of a request: all are visited before one comes again."""
    return serial * _PARTITION_STRIDE % partitions


def _payload(rng: random.Random) -> bytes:
    """One order event, padded with words to `PAYLOAD_BYTES` exactly."""
    at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=rng.randrange(10**10))
    head = (
        f'{{"order":{rng.randrange(10**7, 10**8)},"customer":"c{rng.randrange(10**5):05d}",'
        f'"city":"{rng.choice(_CITIES)}","amount":{rng.randrange(100, 99999) / 100},'
        f'"at":"{at.isoformat(timespec="milliseconds")[:-6]}Z","note":"'
    )
    note = " ".join(rng.choices(_WORDS, k=16))
    return (head + note[: PAYLOAD_BYTES - len(head) - 2] + '"}').encode()


def _hex(rng: random.Random, digits: int) -> str:
    return f"{rng.getrandbits(4 * digits):0{digits}x}"


class MessagePool:
    """Payloads and id halves from one seed; two seeds share no transaction id."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.payloads = [_payload(rng) for _ in range(POOL)]
        self.heads = [f"{_hex(rng, 8)}-{_hex(rng, 4)}-4{_hex(rng, 3)}" for _ in range(POOL)]
        tails = [f"-{rng.choice('89ab')}{_hex(rng, 3)}-{_hex(rng, 12)}" for _ in range(POOL)]
        # Twice, so that a run of tails never has to wrap.
        self.tails = tails + tails

    def place(self, serial: int, count: int) -> tuple[int, int]:
        """Where request number `serial` of `count` messages finds its heads and its tails."""
        per_round = POOL // count
        shift, step = divmod(serial, per_round)
        assert shift < POOL, "more messages than the pool has ids"
        first = step * count
        return first, (first + shift) % POOL

    def transaction_ids(self, serial: int, count: int) -> list[str]:
        head, tail = self.place(serial, count)
        pairs = zip(self.heads[head : head + count], self.tails[tail : tail + count], strict=True)
        return [a + b for a, b in pairs]

    def payload_run(self, serial: int, count: int) -> Sequence[bytes]:
        head, _ = self.place(serial, count)
        return self.payloads[head : head + count]


def _table(rows: Sequence[str]) -> Bytes2D:
    return np.frombuffer("".join(rows).encode(), np.uint8).reshape(len(rows), -1)


class PushTable:
    """What all connections that push to one queue share: the pool as ready rows of JSON."""

    def __init__(self, pool: MessagePool, queue: str, partitions: int, count: int) -> None:
        self.pool = pool
        self.count = count
        self.partitions = _table([partition_name(number) for number in range(partitions)])
        before = f'{{"queue":"{queue}","partition":"'
        self.partition_at = len(before)
        rows = [
            f'{before}{partition_name(0)}","payload":{payload.decode()},"transactionId":"{head}'
            for payload, head in zip(pool.payloads, pool.heads, strict=True)
        ]
        self.tail_at = len(rows[0])
        blank_tail = " " * _HALF_BYTES + '"},'
        self.row_bytes = self.tail_at + len(blank_tail)
        self.rows = "".join(row + blank_tail for row in rows).encode()
        self.tails = _table(pool.tails)


class PushBuffer:
    """One connection's request, refilled for every send."""

    def __init__(self, table: PushTable, host: str) -> None:
        self._table = table
        body_bytes = len('{"items":[') + table.count * table.row_bytes + 1
        head = post_head("/api/v1/push", host, body_bytes) + b'{"items":['
        self._start = len(head)
        self._end = self._start + table.count * table.row_bytes
        self.request = bytearray(head + bytes(self._end - self._start) + b"}")
        cells = np.frombuffer(self.request, np.uint8)[self._start : self._end]
        grid = cells.reshape(table.count, table.row_bytes)
        at = table.partition_at
        self._partition_cells = grid[:, at : at + _PARTITION_BYTES]
        self._tail_cells = grid[:, table.tail_at : table.tail_at + _HALF_BYTES]

    def fill(self, serial: int) -> bytearray:
        table, request = self._table, self.request
        head, tail = table.pool.place(serial, table.count)
        row_bytes, count = table.row_bytes, table.count
        request[self._start : self._end] = table.rows[head * row_bytes : (head + count) * row_bytes]
        request[self._end - 1] = 0x5D  # the last row's comma becomes the end of the array
        number = partition_for(serial, len(table.partitions))
        self._partition_cells[:] = table.partitions[number]
        self._tail_cells[:] = table.tails[tail : tail + count]
        return request


def post_head(path: str, host: str, body_bytes: int, media_type: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\n"
        f"content-type: {media_type}\r\ncontent-length: {body_bytes}\r\n\r\n"
    ).encode()


def get_request(path: str, host: str, accept: str = "*/*") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: {accept}\r\n\r\n".encode()

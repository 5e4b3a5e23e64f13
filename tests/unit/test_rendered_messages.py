"""Messages of a pop are rendered from tables: the same bytes as a JSON encoder's."""

from __future__ import annotations

import json

import pytest

from queen.core.ids import message_id, message_prefix
from queen.wire.answers import message_list, messages

COMMON = {"queue": "100%", "partition": "p", "retryCount": 0}


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 1), (0, 1), (7, 3), (990, 20), (999, 2), (4090, 12), (9_999, 1), (123_456, 1000),
     (4095, 4097), (2**40 - 3, 8)],
)  # fmt: skip
@pytest.mark.parametrize("has_traces", [False, True])
def test_offsets_and_ids_are_those_of_the_messages(
    first: int, count: int, has_traces: bool
) -> None:
    ids = [b"t%d" % at for at in range(count)]
    payloads = [b'{"n":%d}' % at for at in range(count)]
    traces = ["trace"] * count if has_traces else None
    rendered = messages(first, ids, payloads, traces, 0, message_prefix(7), COMMON)
    body = b"".join([*message_list(b"[", [rendered]), b"]"])
    assert json.loads(body) == [
        {
            "id": message_id(7, first + at),
            "transactionId": f"t{at}",
            "data": {"n": at},
            "offset": first + at,
            "traceId": "trace" if has_traces else None,
            **COMMON,
        }
        for at in range(count)
    ]


def test_messages_that_are_skipped_are_left_out() -> None:
    rendered = messages(998, [b"a", b"b", b"c"], [b"1", b"2", b"3"], None, 0b010, "x", COMMON)
    assert [json.loads(each)["data"] for each in rendered] == [1, 3]

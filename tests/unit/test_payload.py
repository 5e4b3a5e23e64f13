"""What a payload may be, and that the quick look never misses what the close look finds."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.core.payload import (
    MAX_DEPTH,
    as_line,
    is_plain,
    longest_is_shallow,
    reason_against_payload,
)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'"\\u0000"', "NUL"),
        (b'"\\ud800"', "surrogate"),
        (b'"\\udc00"', "surrogate"),
        (b'"\\ud800\\u0041"', "surrogate"),
        (b'"\xff"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested"),
    ],
)
def test_what_breaks_others_is_refused(payload: bytes, reason: str) -> None:
    assert reason in (reason_against_payload(payload) or "")
    assert not (is_plain(payload) and longest_is_shallow(len(payload)))


@pytest.mark.parametrize(
    "payload",
    [
        b"null",
        b'"\\\\u0000"',
        b'"\\\\ud800"',
        b'"\\ud83d\\ude00"',
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'{"' + b"[" * 300 + b'": 1}',
        '"é"'.encode(),
    ],
)
def test_what_is_harmless_is_taken(payload: bytes) -> None:
    assert reason_against_payload(payload) is None


@given(st.text())
def test_the_quick_look_agrees_with_the_close_look(text: str) -> None:
    payload = json.dumps(text).encode()
    if is_plain(payload):
        assert reason_against_payload(payload) is None


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), st.integers(0, 4))
def test_one_line_means_the_same(value: dict[str, str], indent: int) -> None:
    pretty = json.dumps(value, indent=indent).encode()
    line = as_line(pretty)
    assert b"\n" not in line
    assert json.loads(line) == value

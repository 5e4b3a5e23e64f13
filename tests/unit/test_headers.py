"""Headers: what may be one, and what is a trace."""

from __future__ import annotations

import pytest

from queen.core.columns.headers import reason_against_headers, trace_headers

TRACE = f"{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize("parent", [f"00-{TRACE}", f"01-{TRACE}", f"cc-{TRACE}-more"])
def test_a_trace_is_carried(parent: str) -> None:
    assert trace_headers(parent, "")["traceparent"] == parent


@pytest.mark.parametrize("parent", [f"00-{TRACE}-x", f"ff-{TRACE}", f"00-{TRACE[:-1]}", "", "00"])
def test_what_is_no_trace_counts_as_not_sent(parent: str) -> None:
    assert trace_headers(parent, "a=1") == {}


@pytest.mark.parametrize("character", ["\0", "\n", "\x7f", "\x85", "\x9b"])
def test_names_have_no_control_characters(character: str) -> None:
    reason = reason_against_headers({f"a{character}": "b"})
    assert reason is not None and "control character" in reason

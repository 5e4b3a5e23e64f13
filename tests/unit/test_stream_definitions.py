"""What a stream may be, and which changes cut other windows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.core.streams import CUTTING, StreamDefinition, complete, differences

_FIELDS: dict[str, Any] = {
    "window_duration_ms": 60_000,
    "window_slide_ms": 20_000,
    "window_gap_ms": 5_000,
    "window_size_count": 100,
    "window_slide_count": 10,
}
_OF_KIND = {
    "tumbling": {"window_duration_ms"},
    "sliding": {"window_duration_ms", "window_slide_ms"},
    "session": {"window_gap_ms"},
    "count": {"window_size_count", "window_slide_count"},
}


@pytest.mark.parametrize("kind", sorted(_OF_KIND))
def test_a_kind_keeps_only_what_it_uses(kind: Any) -> None:
    made = complete(StreamDefinition(window_type=kind, **_FIELDS))
    kept = {name for name in _FIELDS if getattr(made, name) is not None}
    assert kept == _OF_KIND[kind]
    assert complete(made) == made


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ({"window_type": "sliding", "window_duration_ms": 10}, "window_slide_ms is needed"),
        ({"window_type": "sliding", "window_slide_ms": 10}, "window_duration_ms is needed"),
        ({"window_type": "session"}, "window_gap_ms is needed"),
        ({"window_type": "count"}, "window_size_count is needed"),
        (
            {"window_type": "sliding", "window_duration_ms": 10, "window_slide_ms": 3},
            "must be a multiple",
        ),
        (
            {"window_type": "sliding", "window_duration_ms": 20_000, "window_slide_ms": 1},
            "more than 10000 windows",
        ),
        (
            {"window_type": "count", "window_size_count": 5, "window_slide_count": 6},
            "must not be above",
        ),
        (
            {"window_type": "count", "window_size_count": 20_000, "window_slide_count": 1},
            "more than 10000 windows",
        ),
        (
            {"window_type": "session", "window_gap_ms": 5, "emit_empty": True},
            "emit_empty means nothing",
        ),
    ],
)
def test_what_makes_no_sense_is_said(definition: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        complete(StreamDefinition(**definition))


_definitions = st.builds(
    StreamDefinition,
    partitioned=st.booleans(),
    window_type=st.sampled_from(["tumbling", "sliding", "session", "count"]),
    window_duration_ms=st.sampled_from([1000, 60_000]),
    window_slide_ms=st.sampled_from([500, 1000]),
    window_gap_ms=st.sampled_from([1000, 2000]),
    window_size_count=st.sampled_from([10, 20]),
    window_slide_count=st.sampled_from([None, 5]),
    window_grace_period_ms=st.integers(0, 5),
    retry_limit=st.integers(0, 3),
    max_in_flight=st.integers(1, 3),
)


@given(_definitions, _definitions, st.permutations(["a", "b"]), st.permutations(["a", "b"]))
def test_only_a_change_of_the_cut_differs(
    old: StreamDefinition, new: StreamDefinition, before: list[str], after: list[str]
) -> None:
    old, new = complete(old), complete(new)
    changed = [name for name in CUTTING if getattr(old, name) != getattr(new, name)]
    found = differences(old, new, before, after)
    assert [one.split(":")[0] for one in found] == changed
    same = msgspec.structs.replace(
        new, **{name: getattr(old, name) for name in (*CUTTING, *_FIELDS)}
    )
    assert differences(old, same, before, after) == []


def test_other_sources_differ() -> None:
    one = complete(StreamDefinition())
    (said,) = differences(one, one, ["a"], ["b", "a"])
    assert said == 'source_queue_names: ["a"] -> ["a","b"]'

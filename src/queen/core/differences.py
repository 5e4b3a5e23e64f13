"""What differs between two definitions, in words: `graceMs: 30000 -> 60000`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_MISSING = object()


def fingerprint(definition: Mapping[str, Any]) -> str:
    """Return a short text that is equal for equal definitions, whatever their order of keys."""
    canonical = json.dumps(definition, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return one line for each thing that is not the same.

    >>> differences({"graceMs": 1, "where": ["a"]}, {"graceMs": 2, "where": ["a"]})
    ['graceMs: 1 -> 2']
    >>> differences({"aggregates": {"n": "count(*)"}}, {"aggregates": {}})
    ['aggregates.n: count(*) -> nothing']
    """
    return list(_find_differences(old, new, path))


def _find_differences(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in [*old, *(name for name in new if name not in old)]:
            inner = f"{path}.{name}" if path else name
            yield from _find_differences(old.get(name, _MISSING), new.get(name, _MISSING), inner)
    elif _are_lists(old, new) and len(old) == len(new):
        for at, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _find_differences(was, now, f"{path}[{at}]")
    elif old != new and not (_is_nothing(old) and _is_nothing(new)):
        yield f"{path}: {_value_text(old)} -> {_value_text(new)}"


def _are_lists(old: Any, new: Any) -> bool:
    return all(isinstance(value, Sequence) and not isinstance(value, str) for value in (old, new))


def _is_nothing(value: Any) -> bool:
    return value is _MISSING or value is None or value in ([], {}, "")


def _value_text(value: Any) -> str:
    if _is_nothing(value):
        return "nothing"
    return value if isinstance(value, str) else json.dumps(value)

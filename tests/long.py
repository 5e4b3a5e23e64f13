"""Tests that take long beside others like them: `make test-long` runs them too.

Where one test has many cases, a few of them that differ most run always. `long("a", "b")` are
those that run beside them when there is time.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

IS_LONG = "QUEEN_TEST_LONG" in os.environ
LONG = pytest.mark.skipif(not IS_LONG, reason="QUEEN_TEST_LONG=1 runs what takes long")


def long(*cases: Any) -> list[Any]:
    """Return cases of a parameter that are skipped unless there is time."""
    return [pytest.param(case, marks=LONG) for case in cases]

"""Tests that take long beside others like them: `QUEEN_TEST_LONG=1 make test` runs them too."""

from __future__ import annotations

import os

import pytest

LONG = pytest.mark.skipif(
    "QUEEN_TEST_LONG" not in os.environ, reason="QUEEN_TEST_LONG=1 runs what takes long"
)

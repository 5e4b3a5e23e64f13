"""Tests that take long beside others like them: `QUEEN_TEST_LONG=1 make test` runs them too."""

from __future__ import annotations

import os

import pytest

IS_LONG = "QUEEN_TEST_LONG" in os.environ
LONG = pytest.mark.skipif(not IS_LONG, reason="QUEEN_TEST_LONG=1 runs what takes long")

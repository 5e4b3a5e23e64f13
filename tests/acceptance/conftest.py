from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.deployment import Deployment


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """Servers of the test's own; they and their PostgreSQL end with it, whatever happens."""
    made = Deployment(tmp_path / "data")
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(tmp_path / "data", ignore_errors=True)

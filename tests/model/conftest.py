from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api import Api
from tests.conftest import ServerProcess
from tests.model.broker import Broker


@pytest.fixture
def broker(server: ServerProcess, second_server: ServerProcess, dsn: str) -> Iterator[Broker]:
    """Two servers on one database, and a way behind them."""
    opened = Broker([Api(server.url), Api(second_server.url)], dsn)
    yield opened
    opened.close()

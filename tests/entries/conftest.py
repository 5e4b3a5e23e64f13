"""Brokers inside the test, on the shared PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from queen.service.broker import Broker
from queen.service.entries.executor import EntryExecutor


class Caller:
    """Somebody who may see some namespaces, or all."""

    def __init__(self, *namespaces: str) -> None:
        self.subject = None
        self.namespaces = frozenset(namespaces) or None

    def sees(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces


EVERYBODY = Caller()


# No longer than for its module: a broker whose loop other tests block keeps jobs from others.
@pytest.fixture(scope="module")
async def broker(dsn: str) -> AsyncIterator[Broker]:
    running = await Broker.start(dsn)
    yield running
    await running.stop()


@pytest.fixture(scope="module")
async def other_broker(dsn: str) -> AsyncIterator[Broker]:
    """Another server on the same database."""
    running = await Broker.start(dsn)
    yield running
    await running.stop()


@pytest.fixture
def here(broker: Broker) -> EntryExecutor:
    return broker.entries.executor_for(EVERYBODY)


@pytest.fixture
def there(other_broker: Broker) -> EntryExecutor:
    return other_broker.entries.executor_for(EVERYBODY)


@pytest.fixture
def key() -> bytes:
    return f"entries-{uuid.uuid4().hex[:10]}".encode()

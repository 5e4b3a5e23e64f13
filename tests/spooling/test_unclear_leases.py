"""A lease of which an outage leaves open whether it was given is ended when the outage is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queen.errors import OutcomeUnknown, Unavailable
from queen.service.consume.feeds import Pop
from tests.spooling.brokers import append_of, broker_with_spool
from tests.waiting import until_async


async def test_messages_come_again_at_once_and_not_when_the_lease_ends(
    dsn: str, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_with_spool(dsn, tmp_path) as broker:
        await broker.entrance.push([append_of(queue, "a")])
        (known,) = await broker.catalog.queues([queue])
        fetch = broker.hot.fetch
        answered: list[Any] = []

        async def lose(name: str, *arguments: Any) -> Any:
            if name != "claim":
                return await fetch(name, *arguments)
            if not answered:
                # It was given; the answer is lost.
                answered.append(await fetch(name, *arguments))
                raise OutcomeUnknown
            away = Unavailable()
            away.is_outage = True
            raise away

        monkeypatch.setattr(broker.hot, "fetch", lose)
        with pytest.raises(Unavailable):
            await broker.popper.pop([known], Pop("g", 1), 0)
        assert answered
        monkeypatch.setattr(broker.hot, "fetch", fetch)

        async def is_delivered() -> bool:
            return bool(await broker.popper.pop([known], Pop("g", 1), 0))

        # Far less than the five minutes of a lease.
        await until_async(is_delivered, within_s=30.0)

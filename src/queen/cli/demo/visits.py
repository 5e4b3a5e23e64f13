"""The visitors of the demo's shop: what they click and buy, and how that goes wrong.

Some visits arrive an hour after they happened. Some clicks are sent twice: with the same
transaction id, which the broker notices, or with another one, which only their own id tells.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from queen.client import Message, Queen

CLICKS, PURCHASES = "demo.clicks", "demo.purchases"
_USERS = ("anna", "bruno", "carla", "dario", "elisa")
_PAGES = ("/tea", "/cup", "/tray", "/spoon")
_CLICKS_OF_VISIT = 10
_ROUNDS = 40
_PAUSE_S = 0.2
_LATE = timedelta(hours=1)


class Visits:
    """Pushes visits, and counts what must become of them."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self._numbers = itertools.count()

    async def run(self, url: str) -> None:
        async with Queen(url) as queen:
            for number in range(_ROUNDS):
                for at, user in enumerate(_USERS):
                    await self._visit(queen, user, number + at)
                await asyncio.sleep(_PAUSE_S)

    async def _visit(self, queen: Queen, user: str, number: int) -> None:
        is_late = number % 13 == 0
        now = datetime.now(UTC) - (_LATE if is_late else timedelta())
        clicks = [self._click(now) for _ in range(_CLICKS_OF_VISIT)]
        messages = [Message(click) for click in clicks]
        await queen.queue(CLICKS).partition(user).push(messages)
        self.sent["late clicks" if is_late else "clicks"] += len(clicks)
        if number % 3 == 0:
            await self._buy(queen, user, clicks[0], is_late)
        if number % 7 == 0:
            answers = await queen.queue(CLICKS).partition(user).push(messages)
            self.sent["repeats"] += len(messages)
            self.sent["duplicates"] += sum(pushed.status == "duplicate" for pushed in answers)
        if number % 11 == 0 and not is_late:
            # A new message to the broker: only the id in the payload is the same.
            await queen.queue(CLICKS).partition(user).push(clicks)
            self.sent["clicks again"] += len(clicks)

    async def _buy(self, queen: Queen, user: str, click: dict[str, Any], is_late: bool) -> None:
        amount = 5 + next(self._numbers) % 40
        purchase = {"id": uuid.uuid4(), "click": click["id"], "amount": amount, "ts": click["ts"]}
        await queen.queue(PURCHASES).partition(user).push(purchase)
        self.sent["late purchases" if is_late else "purchases"] += 1
        self.sent["amount"] += 0 if is_late else amount

    def _click(self, now: datetime) -> dict[str, Any]:
        number = next(self._numbers)
        page, load_ms = _PAGES[number * number % 7 % len(_PAGES)], 20 + number * 37 % 400
        return {"id": uuid.uuid4(), "page": page, "ms": load_ms, "ts": now}

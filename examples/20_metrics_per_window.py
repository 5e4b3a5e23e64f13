"""Averages, percentiles, error rates and top lists, a window at a time.

`aggregate` computes exactly: sums are not rounded on the way, and a percentile is a value that
is there. It works on `window.messages`, the working copy that `filter` narrows and `reset` makes
whole again; `window.all_messages` never changes.
"""

import asyncio
import uuid
from collections import Counter
from typing import Any

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
METRICS, VIEWS = f"api-metrics-{RUN}", f"page-views-{RUN}"


def requests() -> list[dict[str, Any]]:
    """A hundred requests of 1 to 100 ms, five of which failed."""
    return [{"ms": ms, "status": 503 if ms % 20 == 0 else 200} for ms in range(1, 101)]


def views() -> list[dict[str, Any]]:
    pages = ["/", "/", "/", "/cart", "/cart", "/about"]
    return [{"page": page, "user": f"user-{n % 4}", "s": n} for n, page in enumerate(pages)]


async def summarize(window: Window) -> None:
    """Event-time aggregation: what an alert is made of."""
    found = window.aggregate(count=True, avg="data.ms", p95="data.ms", max="data.ms")
    failed = window.filter(lambda message: message.data["status"] >= 500).size
    print(f"{found['count']} requests, {found['avg']['data.ms']} ms on average")
    print(f"95 % within {found['p95']['data.ms']} ms, all within {found['max']['data.ms']} ms")
    print(f"error rate {failed / found['count']:.0%}, whole window again: {window.reset().size}")


async def update_dashboard(window: Window) -> None:
    """A real-time dashboard: what a page about pages shows."""
    found = window.aggregate(count=True, distinct="data.user", avg="data.s")
    top = Counter({page: len(them) for page, them in window.group_by("data.page").items()})
    print(f"{found['count']} views by {found['distinct']['data.user']} users")
    print(f"top pages {top.most_common(2)}, {found['avg']['data.s']} s on average")


async def main() -> None:
    async with Queen() as queen:
        work = [(METRICS, requests(), summarize), (VIEWS, views(), update_dashboard)]
        for source, messages, handler in work:
            stream = queen.stream(f"{source}-stream", "monitoring").sources(source)
            await stream.tumbling_time(1).grace_period(0).define()
            await queen.queue(source).push(messages)
            await queen.consumer(stream.name, "aggregator").limit(1).process(handler)
            await stream.delete()


asyncio.run(main())

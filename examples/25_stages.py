"""A pipeline of two streams: enrich every click, then add up.

The first stage writes its results into a queue with the ack of the window. The second stage is a
stream over that queue. Each may fail, be restarted or have more workers without the other
noticing, and no click is lost or counted twice on the way.
"""

import asyncio
import uuid
from collections import Counter

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
CLICKS, ENRICHED, FINAL = (f"{name}-{RUN}" for name in ("clicks", "enriched", "final"))
COUNTRIES = {"anna": "IT", "bruno": "IT", "carla": "FR"}
TOTAL = 30


async def main() -> None:
    async with Queen() as queen:
        raw = queen.stream(f"raw-clicks-{RUN}", "analytics").sources(CLICKS)
        await raw.tumbling_time(0.5).grace_period(0).define()
        enriched = queen.stream(f"enriched-clicks-{RUN}", "analytics").sources(ENRICHED)
        await enriched.tumbling_time(1).grace_period(0).define()

        enricher = queen.consumer(raw.name, "enricher")
        aggregator = queen.consumer(enriched.name, "aggregator")
        counts: Counter[str] = Counter()

        async def enrich(window: Window) -> None:
            clicks = [message.data for message in window.all_messages]
            window.push(ENRICHED, [{**one, "country": COUNTRIES[one["user"]]} for one in clicks])

        async def aggregate(window: Window) -> None:
            by_country = window.group_by("data.country")
            counts.update({country: len(them) for country, them in by_country.items()})
            window.push(FINAL, {country: len(them) for country, them in by_country.items()})
            if counts.total() == TOTAL:
                enricher.stop()
                aggregator.stop()

        running = asyncio.gather(enricher.process(enrich), aggregator.process(aggregate))
        for number in range(TOTAL):
            await queen.queue(CLICKS).push({"user": list(COUNTRIES)[number % 3]})
        await running

        final: Counter[str] = Counter()
        for message in await queen.queue(FINAL).batch(100).pop(auto_ack=True):
            final.update(message.data)
        print(f"clicks by country: {dict(sorted(final.items()))}")
        for stream in (raw, enriched):
            await stream.delete()


asyncio.run(main())

"""Read the windows of a stream once more, from the beginning or from a time.

A window is the same whenever it is read: the same messages under the same id. So a report with
a mistake in it is mended by seeking back and running it again. A seek moves a group in all keys;
other groups do not notice.
"""

import asyncio
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
SALES = f"sales-{RUN}"
WINDOW_S = 0.5


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"sales-per-day-{RUN}", "shop").sources(SALES)
        await stream.tumbling_time(WINDOW_S).grace_period(0).define()
        for amount in (10, 20, 30):
            await queen.queue(SALES).push({"amount": amount})
            await asyncio.sleep(WINDOW_S)  # so each of them is in a window of its own

        windows: list[Window] = []

        async def add(window: Window) -> None:
            windows.append(window)

        reports = queen.consumer(stream.name, "reports")

        async def run(count: int) -> list[int]:
            del windows[:]
            await reports.limit(count).process(add)
            return [window.aggregate(sum="data.amount")["sum"]["data.amount"] for window in windows]

        print(f"first run: {await run(3)}")
        ids = [window.id for window in windows]
        second = windows[1]

        await stream.seek("reports", "beginning")
        print(f"from the beginning: {await run(3)}")
        print(f"the same windows: {[window.id for window in windows] == ids}")

        await reports.seek(second.start)
        print(f"from a time: {await run(2)}")

        await reports.seek("now")
        print(f"from now on: {await reports.poll_window(0)}")
        await stream.delete()


asyncio.run(main())

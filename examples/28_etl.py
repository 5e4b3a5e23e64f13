"""Load windows into a database of your own, exactly once.

A window comes again when its consumer dies between the commit of its work and the ack. It then
is the same window, with the same id and the same messages, for ever. So the id, written in the
transaction of the load, makes processing idempotent: a window that was loaded is skipped.
"""

import asyncio
import sqlite3
import uuid

from queen import Queen, Window

RUN = uuid.uuid4().hex[:8]
LOGS = f"application-logs-{RUN}"

warehouse = sqlite3.connect(":memory:")
warehouse.executescript("""
    create table logs (at text, level text, message text);
    create table loaded (window text primary key);
""")


def load(window: Window) -> bool:
    """Load all messages of a window, or none; false when it was loaded before."""
    rows = [
        (message.created_at.isoformat(), message.data["level"].upper(), message.data["text"])
        for message in window.all_messages
    ]
    with warehouse:  # one transaction
        fresh = warehouse.execute(
            "insert into loaded values (?) on conflict do nothing", [window.id]
        ).rowcount
        if fresh:
            warehouse.executemany("insert into logs values (?, ?, ?)", rows)
    return bool(fresh)


async def main() -> None:
    async with Queen() as queen:
        stream = queen.stream(f"raw-logs-{RUN}", "etl").sources(LOGS)
        await stream.tumbling_time(1).grace_period(0).lease_timeout(1).define()
        await queen.queue(LOGS).push([{"level": "info", "text": f"line {n}"} for n in range(100)])

        etl = queen.consumer(stream.name, "etl-processor")
        window = await etl.poll_window(10)
        assert window is not None
        print(f"first consumer: loaded {load(window)}; it dies before its ack")

        async def extract(window: Window) -> None:
            print(f"second consumer, attempt {window.attempt}: loaded {load(window)}")

        await etl.limit(1).process(extract)
        (rows,) = warehouse.execute("select count(*) from logs where level = 'INFO'").fetchone()
        print(f"rows in the warehouse: {rows}")
        await stream.delete()


asyncio.run(main())

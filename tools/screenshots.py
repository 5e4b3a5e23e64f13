"""`make screenshots`: pictures of the dashboard for README and docs, of a broker at work.

A broker of its own gets orders for some minutes: one group keeps up, one fails now and then, one
is slow, and a stream cuts them into windows. Then pages are opened in Chromium and kept as PNG in
`docs/images`. Nothing is drawn by hand: what the pictures show is what the pages show.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Browser, async_playwright
from tests.browser.chromium import ARGUMENTS, chromium

from queen.cli.demo.server import own_server
from queen.client import Message, Queen, Window
from queen.errors import QueenError

_FOLDER = Path(__file__).parents[1] / "docs" / "images"
_MINUTES = 5.0
_CUSTOMERS = 12
_LARGEST_BYTES = 200_000
# Name, address, theme, size.
_PICTURES = (
    ("overview", "/?hours=0.25", "light", (1280, 860)),
    ("stream", "/streams/orders-in-windows?group=reports", "dark", (1280, 760)),
    ("queue", "/queues/orders?hours=0.25", "light", (1280, 760)),
    ("group", "/groups/invoices?queue=orders", "dark", (1280, 620)),
)


async def _orders(queen: Queen) -> None:
    """Push orders, more of them and then fewer."""
    orders = queen.queue("orders")
    chance = random.Random(7)  # noqa: S311 (any numbers will do)
    for step in itertools.count():
        many = round(30 + 25 * math.sin(step / 40) + chance.random() * 10)
        customer = f"customer-{chance.randrange(_CUSTOMERS)}"
        items = [{"order": step * 100 + n, "total": chance.randrange(900)} for n in range(many)]
        await orders.partition(customer).push(items)
        await asyncio.sleep(0.3)


async def _consume(queen: Queen, group: str, fails: float, pause_s: float) -> None:
    chance = random.Random(group)  # noqa: S311

    async def handle(message: Message) -> None:
        await asyncio.sleep(pause_s)
        if message.data["order"] % 1000 == 17 and chance.random() < fails:
            raise ValueError("card declined by the bank")

    await queen.queue("orders").group(group).consume(handle)


async def _windows(queen: Queen) -> None:
    stream = queen.stream("orders-in-windows").sources(["orders"]).partitioned().tumbling_time(10)
    await stream.grace_period(1).define()

    async def handle(_window: Window) -> None:
        await asyncio.sleep(0.2)

    await queen.consumer("orders-in-windows", "reports").process(handle)


async def _work(port: int) -> None:
    """Let the broker have something to do."""
    async with Queen(f"http://127.0.0.1:{port}") as queen:
        await queen.queue("orders").config(retryLimit=1, retryDelay=100).create()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_orders(queen))
            tasks.create_task(_consume(queen, "billing", 1.0, 0.0))
            tasks.create_task(_consume(queen, "search-index", 0.0, 0.0))
            tasks.create_task(_consume(queen, "invoices", 0.0, 0.12))
            tasks.create_task(_windows(queen))


def work(port: int) -> None:
    asyncio.run(_work(port))


async def _picture(browser: Browser, url: str, name: str, path: str, theme: str) -> None:
    size = next(size for each, _, _, size in _PICTURES if each == name)
    page = await browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if theme == "dark" else "light",
    )
    await page.goto(url + path)
    await page.wait_for_selector("main h1")
    # Charts and lists are there after their first look.
    await page.wait_for_timeout(6000)
    target = _FOLDER / f"dashboard-{name}.png"
    await page.screenshot(path=target)
    await page.close()
    if target.stat().st_size > _LARGEST_BYTES:
        raise SystemExit(f"{target} is larger than {_LARGEST_BYTES:,} bytes")


async def _take(port: int) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        for name, path, theme, _size in _PICTURES:
            await _picture(browser, f"http://127.0.0.1:{port}", name, path, theme)
        await browser.close()


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else _MINUTES
    _FOLDER.mkdir(exist_ok=True)
    with own_server() as server:
        code = f"from tools.screenshots import work; work({server.port})"
        working = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)  # noqa: S603 (this program)
        try:
            working.wait(minutes * 60)
            raise QueenError("what gives the broker something to do has ended")
        except subprocess.TimeoutExpired:
            asyncio.run(_take(server.port))
        finally:
            working.kill()
            working.wait()


if __name__ == "__main__":
    main()

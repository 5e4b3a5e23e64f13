"""Every page: it opens, fits, can be read by everybody, and says nothing wrong in the console."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe

from queen.dashboard.files import PAGES
from tests.browser.addresses import ADDRESSES, message_address
from tests.browser.conftest import Site, Visit
from tests.browser.data import ORDERS
from tests.browser.visitor import NARROW, WIDE, Visitor

_GRAVE = {"serious", "critical"}


async def grave_findings(visitor: Visitor) -> list[str]:
    """What axe finds on the page that keeps somebody from using it."""
    results = await Axe().run(visitor.page)
    found: list[dict[str, Any]] = results.response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found
        if each["impact"] in _GRAVE
        for node in each["nodes"]
    ]


def test_every_page_has_an_address_here() -> None:
    assert set(ADDRESSES) == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_opens_fits_and_can_be_used_by_all(
    page: str, site: Site, visit: Visit
) -> None:
    visitor = await visit()
    await visitor.open(ADDRESSES[page] or message_address(site.admin, ORDERS))
    for dark in (False, True):
        for size in (WIDE, NARROW):
            await visitor.look(dark=dark, size=size)
            assert await visitor.overflow() <= 0, (page, dark, size)
        assert await grave_findings(visitor) == []
    assert not await visitor.page.query_selector(".failure")


async def test_a_page_that_is_not_there_says_so(visit: Visit) -> None:
    visitor = await visit()
    await visitor.open("/queues/no-such-queue")
    assert "Queue 'no-such-queue' not found" in await visitor.page.inner_text("main")


async def test_the_overview_puts_problems_first(visit: Visit) -> None:
    visitor = await visit()
    await visitor.open("/")
    problems = visitor.page.locator(".problems")
    await problems.get_by_text(f"2 dead letters in {ORDERS}").wait_for()
    await problems.get_by_role("link", name="Dead letters").first.wait_for()
    boxes = await asyncio.gather(
        problems.bounding_box(), visitor.page.locator(".numbers").bounding_box()
    )
    assert boxes[0] and boxes[1] and boxes[0]["y"] < boxes[1]["y"]


async def test_what_the_overview_does_not_show_it_counts(site: Site, visit: Visit) -> None:
    queue, admin = "dies in many ways", site.admin
    assert admin.configure(queue, leaseTime=600).status < 300
    admin.push_many(queue, 20)
    for at, message in enumerate(admin.messages(queue, consumerGroup="clumsy", batch=20)):
        assert admin.ack(message, "dlq", error=f"way {at}").status == 200
    visitor = await visit()
    await visitor.open("/")
    kinds = visitor.page.locator(".problems > li")
    rest = visitor.page.get_by_text("more:")
    await rest.get_by_role("link", name="Dead letters").wait_for()
    classes = await kinds.evaluate_all("all => all.map((each) => each.className)")
    assert classes == sorted(classes) and set(classes) <= {"bad", "warn"}
    total = int((await visitor.page.locator("section h2").first.inner_text()).split()[0])
    assert f"and {total - len(classes)} more" in await rest.inner_text()
    assert admin.call("DELETE", "/api/v1/resources/queues/dies%20in%20many%20ways").status == 200


async def test_a_chosen_tab_and_a_filter_are_in_the_address(site: Site, visit: Visit) -> None:
    first = await visit()
    await first.open("/queues")
    await first.page.fill("#find", "payments")
    await first.page.wait_for_url("**/queues?q=payments")
    second = await visit()
    await second.open(first.page.url.removeprefix(site.url))
    await second.page.get_by_text("1 of ").wait_for()
    assert await second.page.locator("tbody tr[data-key]").count() == 1
    await second.open(f"/queues/{ORDERS}?tab=options")
    await second.page.get_by_role("table", name="Options").wait_for()


async def test_keys_alone_reach_everything(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open("/queues")
    await page.locator("tbody tr[data-key]").first.wait_for()
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the page"
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.focus(".table-box")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("ArrowDown")
    second = page.locator("tbody tr[data-key]").nth(1).locator("a").first
    assert await second.evaluate("each => each === document.activeElement")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/queues/*")

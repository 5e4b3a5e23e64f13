"""Names and payloads that were not meant kindly: shown as text, and nothing is pushed aside."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.browser.addresses import message_address
from tests.browser.conftest import Site, Visit
from tests.browser.data import HOSTILE_NAMES, HOSTILE_PAYLOAD, ORDERS, SCRIPT
from tests.browser.visitor import NARROW, WIDE

_NAMED = (
    "/queues/{}",
    "/queues/{}?tab=partitions",
    "/queues/{}?tab=groups",
    "/messages?queue={}",
    "/groups/{}",
)


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=["script", "rtl", "long"])
async def test_names_are_text_and_the_layout_holds(name: str, visit: Visit) -> None:
    visitor = await visit()
    for path in _NAMED:
        await visitor.open(path.format(quote(name, safe="")))
        assert await visitor.page.locator("script:not([src])").count() == 0
        for size in (WIDE, NARROW):
            await visitor.look(dark=False, size=size)
            assert await visitor.overflow() <= 0, (path, size)
    assert name in await visitor.page.inner_text("h1")


async def test_lists_show_them_as_text(visit: Visit) -> None:
    visitor = await visit()
    for path in ("/queues", "/groups", "/"):
        await visitor.open(path)
        await visitor.look(dark=True, size=NARROW)
        await visitor.page.get_by_text(SCRIPT).first.wait_for() if path != "/" else None
        assert await visitor.overflow() <= 0, path


async def test_a_payload_is_text(site: Site, visit: Visit) -> None:
    visitor = await visit()
    await visitor.open(message_address(site.admin, SCRIPT))
    shown = await visitor.page.inner_text("pre.payload")
    assert HOSTILE_PAYLOAD["html"] in shown
    assert await visitor.page.locator("main img").count() == 0


async def test_a_large_payload_is_cut_on_the_screen_only(site: Site, visit: Visit) -> None:
    visitor = await visit()
    path = f"/api/v1/messages?queue={ORDERS}&partition=large"
    (large,) = site.admin.call("GET", path).json["messages"]
    await visitor.open(f"/messages/{large['partitionId']}/{large['id']}")
    block = visitor.page.locator("pre.payload")
    await block.wait_for()
    assert len(await block.inner_text()) < 30_000
    assert await visitor.overflow() <= 0
    async with visitor.page.expect_download() as downloading:
        await visitor.page.get_by_role("button", name="Save").click()
    saved = await (await downloading.value).path()
    assert saved.stat().st_size > 1_000_000

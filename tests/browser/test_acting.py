"""What somebody does with it reaches the broker, and is seen on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser.addresses import message_address
from tests.browser.conftest import Site, Visit
from tests.browser.data import ORDERS
from tests.browser.test_pages import grave_findings
from tests.waiting import until_async


@pytest.fixture
def queue(site: Site, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own: ten messages, five of them read by the group `billing`."""
    name = f"own {request.node.name}"[:200]
    assert site.admin.configure(name, leaseTime=600).status < 300
    site.admin.push_many(name, 10)
    for message in site.admin.messages(name, consumerGroup="billing", batch=5):
        assert site.admin.ack(message).status == 200
    return name


async def test_a_message_is_pushed(site: Site, queue: str, visit: Visit) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/queues/{queue}")
    await page.locator(".head").get_by_role("button", name="Push", exact=True).click()
    await page.fill("#push-partition", "by-hand")
    await page.fill("#push-payload", '{"large": 12345678901234567890}')
    await page.get_by_role("dialog").get_by_role("button", name="Push").click()
    await page.locator(".toast").get_by_text("Pushed").wait_for()
    (message,) = site.admin.messages(queue, "by-hand", consumerGroup="looks")
    assert message["data"] == {"large": 12345678901234567890}


async def test_a_payload_that_is_no_json_is_refused_with_the_reason(
    queue: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    await visitor.open(f"/messages?queue={queue}")
    await visitor.page.get_by_role("button", name="Push", exact=True).click()
    await visitor.page.fill("#push-payload", "{nonsense")
    await visitor.page.get_by_role("dialog").get_by_role("button", name="Push").click()
    await visitor.page.get_by_role("alert").get_by_text("The payload is no JSON").wait_for()


async def test_an_option_is_changed_and_the_others_stay(
    site: Site, queue: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/queues/{queue}?tab=options")
    await page.get_by_role("button", name="Edit").click()
    await page.fill("#option-retryLimit", "9")
    await page.get_by_text("1 change: retryLimit 3 → 9").wait_for()
    await page.get_by_role("button", name="Save").click()
    await page.locator(".toast").get_by_text("retryLimit: 3 → 9").wait_for()
    await page.locator("tr", has_text="retryLimit").get_by_text("set").wait_for()
    options = site.admin.call(
        "GET", f"/api/v1/resources/queues/{queue.replace(' ', '%20')}/options"
    )
    values = {each["name"]: each["value"] for each in options.json["options"]}
    assert values["retryLimit"] == 9 and values["leaseTime"] == 600


async def test_the_head_of_a_group_says_what_its_rows_say(
    site: Site, queue: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/groups/billing?queue={queue}")
    pending = page.locator(".number", has_text="Pending").locator("dd")
    assert (await pending.inner_text()).strip() == "5"
    await page.locator(".head").get_by_role("button", name="Seek").click()
    await page.get_by_role("dialog").locator("#seek-to").select_option("beginning")
    await page.get_by_role("dialog").get_by_text("5 messages read again").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Seek").click()
    cell = page.locator("tbody tr[data-key] td").nth(2)
    await cell.get_by_text("10", exact=True).wait_for()
    assert (await pending.inner_text()).strip() == "10"


async def test_a_seek_says_in_numbers_what_it_would_do(
    site: Site, queue: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/groups/billing?queue={queue}")
    await page.get_by_role("button", name="Seek").first.click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("0 messages read again, 5 messages skipped").wait_for()
    await dialog.locator("#seek-to").select_option("beginning")
    await dialog.get_by_text("5 messages read again, 0 messages skipped").wait_for()
    assert len(site.admin.messages(queue, consumerGroup="billing", batch=50)) == 5
    await dialog.get_by_role("button", name="Seek").click()
    await page.locator(".toast").get_by_text("5 messages read again").wait_for()
    assert len(site.admin.messages(queue, consumerGroup="billing", batch=50)) == 10


async def test_a_group_is_paused_and_reads_again(site: Site, queue: str, visit: Visit) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/groups/billing?queue={queue}")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_role("dialog").get_by_text("5 wait now").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await page.get_by_role("button", name="Resume", exact=True).wait_for()

    async def is_held() -> bool:
        return not site.admin.messages(queue, consumerGroup="billing", batch=1)

    await until_async(is_held)
    await page.get_by_role("button", name="Resume", exact=True).click()
    await page.get_by_role("button", name="Pause", exact=True).wait_for()


async def test_a_message_is_set_aside_and_delivered_again(
    site: Site, queue: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(message_address(site.admin, queue))
    await page.get_by_role("button", name="Move to dead letters").click()
    await page.fill("#reason", "looks <wrong>")
    await page.get_by_role("button", name="Set aside for 1 group").click()
    await page.locator(".life").get_by_text("looks <wrong>").wait_for()
    await page.get_by_role("button", name="Deliver again").click()
    await page.locator(".toast").get_by_text("Delivered again to 1 group.").wait_for()
    await page.get_by_role("button", name="Deliver again").wait_for(state="detached")


async def test_a_message_is_deleted(site: Site, queue: str, visit: Visit) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(message_address(site.admin, queue))
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.get_by_text("1 group that has not read it will never get it.").wait_for()
    await page.get_by_role("button", name="Delete 1 message").click()
    await page.wait_for_url("**/messages?*")
    assert [each["n"] for each in site.admin.data(queue, consumerGroup="late", batch=50)] == [
        *range(9)
    ]


async def test_messages_are_found_and_exported(
    site: Site, queue: str, visit: Visit, tmp_path: Path
) -> None:
    site.admin.push({"queue": queue, "payload": {"text": "a Needle <here>"}})
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open(f"/messages?queue={queue}")
    await page.get_by_text("11 messages").wait_for()
    await page.fill("#text", "needle")
    await page.get_by_text("1 message, found among the newest 11 messages").wait_for()
    async with page.expect_download() as downloading:
        await page.get_by_role("button", name="Export as NDJSON").click()
    await (await downloading.value).save_as(tmp_path / "shown.ndjson")
    (line,) = (tmp_path / "shown.ndjson").read_text().splitlines()
    assert json.loads(line)["payload"] == {"text": "a Needle <here>"}
    await page.fill("#text", "")
    await page.fill("#partition", "Default")
    await page.fill("#at", "3")
    await page.locator("tbody").get_by_text('{"n": 3}').wait_for()


async def test_a_queue_is_made_and_deleted_by_its_name(site: Site, visit: Visit) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open("/queues")
    await page.get_by_role("button", name="New queue").click()
    await page.fill("#new-name", "made by hand")
    await page.get_by_role("button", name="Create", exact=True).click()
    await page.wait_for_url("**/queues/made%20by%20hand")
    await page.get_by_role("button", name="Delete", exact=True).click()
    delete = page.get_by_role("button", name="Delete the queue")
    assert await delete.is_disabled()
    await page.fill("#typed", "made by hand")
    await delete.click()
    await page.wait_for_url("**/queues")
    assert site.admin.call("GET", "/api/v1/resources/queues/made%20by%20hand").status == 404


async def test_search_finds_everything_that_has_a_name(visit: Visit) -> None:
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open("/")
    await page.keyboard.press("/")
    await page.keyboard.type("customer-1")
    results = page.get_by_role("listbox", name="Results")
    await results.get_by_text(f"of {ORDERS}").wait_for()
    await page.get_by_role("combobox", name="Search").fill(ORDERS)
    await results.get_by_role("option", name=f"queue {ORDERS}", exact=True).wait_for()
    await page.get_by_role("combobox", name="Search").fill("grou")
    await results.get_by_role("option", name="page Groups").wait_for()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/groups")


async def test_a_confirmation_counts_when_it_is_asked(site: Site, queue: str, visit: Visit) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open(f"/queues/{queue}?tab=options")
    # What the page has read by now is old.
    await page.get_by_role("button", name="Live").click()
    site.admin.push_many(queue, 7)
    await page.get_by_role("button", name="Clear").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text("17 stored messages are deleted for good, 12 unread").wait_for()
    assert await grave_findings(visitor) == []
    await dialog.get_by_role("button", name="Cancel").click()
    site.admin.push_many(queue, 1)
    await page.get_by_role("button", name="Delete").click()
    await dialog.get_by_text("1 partition and 18 messages are deleted for good").wait_for()
    await page.fill("#typed", queue)
    await dialog.get_by_role("button", name="Delete the queue").click()
    await page.wait_for_url("**/queues")

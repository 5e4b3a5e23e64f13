"""Dead letters, what is due later, the spool and the system: what operators do there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

import asyncpg
import pytest

from tests.browser.addresses import message_address
from tests.browser.conftest import Site, Visit
from tests.browser.data import HOSTILE_NAMES, ORDERS
from tests.browser.stream_data import ERROR
from tests.browser.visitor import NARROW
from tests.spooling.test_drain import _refuse_nothing, _refuse_partition
from tests.waiting import until


@pytest.fixture
def graves(site: Site, request: pytest.FixtureRequest) -> str:
    """A queue of which a group has given up four messages, for two reasons."""
    name = f"own {request.node.name}"[:150]
    site.admin.push_many(name, 4)
    for message in site.admin.messages(name, consumerGroup="mailer", batch=4):
        error = ERROR if message["data"]["n"] < 3 else "other"
        assert site.admin.ack(message, "dlq", error=error).status == 200
    return name


def letters(site: Site, queue: str) -> int:
    answer = site.admin.call("GET", f"/api/v1/dlq?queue={quote(queue, safe='')}")
    total: int = answer.json["total"]
    return total


async def test_dead_letters_are_redriven_one_some_and_all(
    site: Site, graves: str, visit: Visit
) -> None:
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/dead-letters?queue={quote(graves)}")
    list_ = page.get_by_role("table", name="Dead letters")
    await page.get_by_text("4 dead letters").wait_for()
    # One, after looking inside.
    await list_.locator("tbody button").first.click()
    await page.get_by_role("dialog").locator("pre.payload").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    await page.get_by_text("3 dead letters").wait_for()
    assert len(site.admin.messages(graves, consumerGroup="mailer", batch=9)) == 1
    # Some.
    await list_.get_by_label("Choose row 1", exact=True).check()
    await page.get_by_role("button", name="Redrive 1 chosen").click()
    await page.get_by_text("1 message will be delivered again").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    await page.get_by_text("2 dead letters").wait_for()
    # All of one error.
    row = page.get_by_role("table", name="Errors").locator("tbody tr", has_text=ERROR)
    await row.get_by_role("button", name="Redrive").click()
    await page.get_by_text(f"Only those that died of: {ERROR}").wait_for()
    await page.get_by_role("button", name="Redrive all", exact=True).click()
    await page.get_by_text("Nothing has died.").wait_for()
    assert letters(site, graves) == 0


async def test_errors_narrow_the_list_and_stand_in_the_address(graves: str, visit: Visit) -> None:
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open(f"/dead-letters?queue={quote(graves)}")
    errors = page.get_by_role("table", name="Errors")
    await errors.get_by_role("button", name=ERROR).click()
    await page.get_by_text("3 dead letters").wait_for()
    await page.wait_for_url("**errorKey=*")
    assert await page.locator("main b").count() == 0
    assert await page.get_by_role("button", name="Redrive", exact=True).count() == 0
    assert await page.get_by_role("button", name="Remove all that fit").count() == 0


async def test_to_remove_dead_letters_the_name_is_typed(
    site: Site, graves: str, visit: Visit
) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open(f"/dead-letters?queue={quote(graves)}")
    await page.get_by_role("button", name="Remove all that fit").click()
    await page.get_by_text("4 dead letters will be gone for ever.").wait_for()
    remove = page.get_by_role("dialog").get_by_role("button", name="Remove")
    assert await remove.is_disabled()
    await page.fill("#typed", graves)
    await remove.click()
    await page.locator(".toast").get_by_text("4 dead letters removed").wait_for()
    assert letters(site, graves) == 0


async def test_what_is_scheduled_is_listed_and_cancelled(
    site: Site, request: pytest.FixtureRequest, visit: Visit
) -> None:
    queue = f"own {request.node.name}"
    site.admin.push({"queue": queue, "payload": 1, "delay": 3600, "transactionId": "later"})
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/schedules?queue={quote(queue)}")
    await page.get_by_role("table").get_by_text("later").wait_for()
    await page.get_by_role("button", name="Cancel", exact=True).click()
    await page.get_by_text("will never be delivered").wait_for()
    await page.get_by_role("button", name="Cancel it").click()
    await page.get_by_text("Nothing is scheduled.").wait_for()
    listed = site.admin.call("GET", f"/api/v1/scheduled?queue={quote(queue)}")
    assert listed.json["scheduled"] == []


@pytest.fixture
async def quarantined(site: Site, guarded_dsn: str) -> AsyncIterator[str]:
    """A queue with two records in quarantine, which the database would take by now."""
    queue = "own quarantine"
    for partition in ("bad",):
        site.admin.push({"queue": queue, "partition": partition, "payload": 0})
    connection = await asyncpg.connect(guarded_dsn)
    await _refuse_partition(connection, queue, "bad")
    for number in range(2):
        item = {"queue": queue, "partition": "bad", "payload": {"html": f"<i>{number}</i>"}}
        body = {"items": [item], "qos0": True}
        assert site.admin.call("POST", "/api/v1/push", body).status == 202
        until(lambda number=number: waiting(site) == number + 1)  # type: ignore[misc]
    await _refuse_nothing(connection)
    await connection.close()
    yield queue


def waiting(site: Site) -> int:
    return len(site.admin.call("GET", "/api/v1/spool/quarantine").json["records"])


async def test_records_in_quarantine_are_looked_at_stored_and_dropped(
    site: Site, quarantined: str, visit: Visit
) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open("/spool")
    list_ = page.get_by_role("table", name="Quarantine")
    await list_.locator("tbody button").first.click()
    await page.get_by_role("dialog").locator("pre", has_text="</i>").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await page.locator(".toast").get_by_text("1 record will be stored again").wait_for()
    await list_.get_by_label("Choose all rows").check()
    await page.get_by_role("button", name="Drop 1 chosen").click()
    await page.get_by_text("1 record with all their messages will be gone for ever.").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Drop").click()
    await page.get_by_text("Every record could be stored.").wait_for()
    assert waiting(site) == 0
    until(lambda: len(site.admin.messages(quarantined, "bad", consumerGroup="all", batch=9)) > 0)


async def test_a_token_is_made_shown_once_and_revoked(site: Site, visit: Visit) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open("/system?tab=tokens")
    await page.get_by_role("button", name="New token").click()
    await page.fill("#token-name", "<u>by hand</u>")
    await page.fill("#token-namespaces", "shop")
    await page.get_by_role("dialog").get_by_role("button", name="Make").click()
    shown = page.get_by_role("dialog").locator("pre")
    token = await shown.inner_text()
    assert token.startswith("queen_")
    await page.get_by_role("button", name="Done").click()
    row = page.locator("tbody tr", has_text="<u>by hand</u>")
    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await row.get_by_text("revoked").wait_for()
    await page.get_by_role("tab", name="Audit log").click()
    await page.get_by_role("table", name="Audit log").get_by_text("token.revoke").first.wait_for()
    assert token not in await page.content()


async def test_servers_settings_and_postgres_are_shown_and_no_secret(visit: Visit) -> None:
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open("/system")
    await page.get_by_role("table", name="Servers").locator("tbody tr").first.wait_for()
    await page.get_by_role("tab", name="PostgreSQL").click()
    await page.get_by_text("Cache hits").wait_for()
    await page.locator(".number", has_text="WAL").get_by_text("/s").wait_for()
    await page.get_by_role("tab", name="Settings").click()
    row = page.locator("tr", has_text="encryption-key")
    await row.get_by_text("set, not shown").wait_for()
    await row.get_by_text("environment", exact=True).wait_for()


async def test_a_token_of_a_namespace_sees_what_is_its_own(visit: Visit) -> None:
    visitor = await visit("shopkeeper")
    page = visitor.page
    for path in ("/system", "/spool"):
        await visitor.open(path)
        await page.get_by_text("limited to some namespaces").wait_for()
    for path in ("/dead-letters", "/schedules", "/map", "/streams", "/pipelines"):
        await visitor.open(path)
        await page.get_by_text(ORDERS).first.wait_for()
        assert HOSTILE_NAMES[0] not in await page.inner_text("main") or path != "/schedules"
        assert not await page.query_selector(".failure"), path


async def test_errors_and_ids_that_are_not_ordinary_are_text(visit: Visit) -> None:
    visitor = await visit()
    for path in ("/dead-letters", "/schedules", "/system?tab=audit", "/map"):
        await visitor.open(path)
        for name in HOSTILE_NAMES[:1] if path in ("/schedules", "/map") else ():
            await visitor.page.get_by_text(name).first.wait_for()
        await visitor.look(dark=True, size=NARROW)
        assert await visitor.overflow() <= 0, path
        assert await visitor.page.locator("main script, main u, main i:not(.swatch)").count() == 0


async def test_a_message_names_who_holds_it(
    site: Site, request: pytest.FixtureRequest, visit: Visit
) -> None:
    queue = f"own {request.node.name}"
    assert site.admin.configure(queue, leaseTime=600).status < 300
    site.admin.push_many(queue, 1)
    assert site.admin.messages(queue, consumerGroup="mailer", consumer="<b>mill</b>")
    visitor = await visit("reader")
    await visitor.open(message_address(site.admin, queue))
    held = visitor.page.locator(".life").get_by_text("by <b>mill</b>, until ")
    await held.wait_for()
    assert "attempt 1" in await held.inner_text()
    await visitor.look(dark=False, size=NARROW)
    assert await visitor.overflow() <= 0
    stranger = await visit("shopkeeper")
    await stranger.open(message_address(site.admin, queue))
    assert "mill" not in await stranger.page.inner_text("main")

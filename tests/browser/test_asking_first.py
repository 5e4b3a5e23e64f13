"""What would change or remove more than somebody means is refused, or asked about with numbers."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.browser.conftest import Site, Visit

_LONG_ERROR = "ValueError: " + "é" * 9_900
_OVERRIDE = "\u202e"
_HEBREW = "\u05e9\u05dc\u05d5\u05dd"


def _options(site: Site, queue: str) -> dict[str, object]:
    path = f"/api/v1/resources/queues/{quote(queue)}/options"
    answer = site.admin.call("GET", path).json
    named = {each["name"]: each["value"] for each in answer["options"]}
    return {**named, "namespace": answer["namespace"]}


@pytest.mark.parametrize("namespace", ["", "elsewhere"])
async def test_a_new_queue_leaves_one_of_its_name_alone(
    namespace: str, site: Site, visit: Visit
) -> None:
    queue = f"vault {namespace}"
    body = {"queue": queue, "namespace": "bank", "options": {"leaseTime": 77, "maxSize": 1000}}
    assert site.admin.call("POST", "/api/v1/configure", body).status == 201
    before = _options(site, queue)
    page = (await visit("admin")).page
    await page.goto(f"{site.url}/queues")
    await page.get_by_role("button", name="New queue").click()
    await page.fill("#new-name", queue)
    await page.fill("#new-namespace", namespace)
    await page.get_by_role("button", name="Create", exact=True).click()
    await page.get_by_role("dialog").get_by_text("a queue of this name already").wait_for()
    assert _options(site, queue) == before


async def test_options_that_remove_messages_say_how_many(site: Site, visit: Visit) -> None:
    queue = "kept for ever"
    assert site.admin.configure(queue).status < 300
    site.admin.push_many(queue, 12)
    visitor = await visit("admin")
    page = visitor.page
    await visitor.open(f"/queues/{queue}?tab=options")
    await page.get_by_role("button", name="Edit").click()
    await page.fill("#option-ttl", "3600")
    await page.get_by_role("button", name="Save").click()
    asking = page.get_by_role("dialog").filter(has_text="sooner?")
    await asking.get_by_text("0 messages are older than 1 h now").wait_for()
    await asking.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog").get_by_text("Not saved.").wait_for()
    assert _options(site, queue)["ttl"] == 0
    await page.get_by_role("button", name="Save").click()
    await asking.get_by_role("button", name="Save and remove").click()
    await page.locator(".toast").get_by_text("ttl: 0 → 3600").wait_for()
    older = f"/api/v1/resources/queues/{quote(queue)}/older?seconds=0"
    assert site.admin.call("GET", older).json["messages"] == 12


async def test_letters_of_a_long_error_are_opened_and_redriven(site: Site, visit: Visit) -> None:
    queue, admin = "dies at length", site.admin
    assert admin.configure(queue, leaseTime=600).status < 300
    admin.push_many(queue, 4)
    first, second, third, _ = admin.messages(queue, batch=4)
    for message in (first, second):
        assert admin.ack(message, "dlq", error=_LONG_ERROR).status == 200
    assert admin.ack(third, "dlq").status == 200
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/dead-letters?queue={quote(queue)}")
    causes = page.get_by_role("table", name="Errors")
    await causes.get_by_text("ValueError").first.click()
    await page.wait_for_url("**errorKey=*")
    await page.get_by_text("2 dead letters", exact=True).wait_for()
    assert len(page.url) < 300
    other = await visit("writer")
    await other.open(page.url.removeprefix(site.url))
    await other.page.get_by_text("2 dead letters", exact=True).wait_for()
    await causes.get_by_role("button", name="Redrive").click()
    asking = page.get_by_role("dialog")
    number = asking.get_by_text("2 messages of dies at length will be delivered again.")
    await number.wait_for()
    assert await asking.evaluate("each => each.scrollTop") == 0
    assert await asking.evaluate("each => each.scrollHeight <= innerHeight")
    await asking.get_by_role("button", name="Redrive all").click()
    await page.locator(".toast").get_by_text("2 messages will be delivered again.").wait_for()
    assert admin.call("GET", f"/api/v1/dlq?queue={quote(queue)}").json["total"] == 1


async def test_those_without_a_group_have_a_name_for_people(site: Site, visit: Visit) -> None:
    admin = site.admin
    admin.push_many("read by nobody in particular", 1)
    assert len(admin.messages("read by nobody in particular", batch=1)) == 1
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open("/groups")
    await page.get_by_text("(no group)").first.wait_for()
    await page.keyboard.press("/")
    await page.keyboard.type("no gro")
    results = page.get_by_role("listbox", name="Results")
    await results.get_by_role("option", name="group (no group)").wait_for()
    await page.get_by_role("combobox", name="Search").fill("__QUEUE")
    await page.get_by_text("Nothing has such a name.").wait_for()
    assert "__QUEUE_MODE__" not in await page.inner_text("body")


async def test_what_acts_on_text_unseen_is_shown(site: Site, visit: Visit) -> None:
    queue = "tricks"
    payload = {"t": f"{_OVERRIDE}{_HEBREW} evil \u202d\u0007"}
    assert site.admin.push({"queue": queue, "payload": payload}).status == 201
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open(f"/messages?queue={queue}")
    preview = page.locator("a.preview").first
    await preview.wait_for()
    assert _OVERRIDE not in await preview.inner_text()
    assert "\\u202e" in await preview.inner_text()
    await preview.click()
    block = page.locator("pre.payload")
    await block.wait_for()
    assert await block.locator("bdi").inner_text() == _HEBREW
    shown = await block.inner_text()
    assert f"\\u202e{_HEBREW} evil \\u202d\\u0007" in shown and _OVERRIDE not in shown


async def test_long_and_blank_names_are_seen_and_fit(site: Site, visit: Visit) -> None:
    space, blank = "n" * 255, " "
    for queue, namespace in (("in a long namespace", space), (blank, "")):
        body = {"queue": queue, "namespace": namespace, "options": {}}
        assert site.admin.call("POST", "/api/v1/configure", body).status == 201
    visitor = await visit("reader")
    for size in ((1280, 850), (390, 800)):
        await visitor.look(dark=False, size=size)
        await visitor.open("/queues/in%20a%20long%20namespace")
        assert await visitor.overflow() <= 0, size
    await visitor.open("/queues")
    await visitor.page.fill("#find", " ")
    await visitor.page.get_by_role("link", name='" "', exact=True).wait_for()


async def test_a_limited_token_is_shown_and_asked_for_nothing_that_is_refused(
    visit: Visit,
) -> None:
    visitor = await visit("shopkeeper")
    refused: list[str] = []
    visitor.page.on(
        "response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None
    )
    await visitor.open("/")
    await visitor.page.locator(".numbers").first.wait_for()
    assert refused == []
    facts = await visitor.page.inner_text("main")
    assert "Servers" not in facts and "Event loop" not in facts

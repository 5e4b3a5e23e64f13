"""Streams, pipelines, streams of entries and the map: what they show, and what is done there."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import Site, Visit
from tests.browser.data import HOSTILE_NAMES, ORDERS, OTHER_NAMESPACE
from tests.browser.stream_data import (
    COUNTS,
    ERROR,
    JOBS,
    PIPELINE,
    RESULTS,
    add_entries,
    define_counts,
    entries_of,
    poll,
    report,
    settle,
)
from tests.browser.visitor import NARROW, WIDE
from tests.waiting import until_async

_NAMED = ("/streams/{}", "/pipelines/{}", "/map?queue={}")


@pytest.fixture
def own(site: Site, request: pytest.FixtureRequest) -> str:
    """The name of something of the test's own."""
    return f"own {request.node.name}"[:150]


def state_of(site: Site, stream: str, key: str) -> Any:
    path = f"/api/v1/resources/streams/{quote(stream, safe='')}/timeline?group=totals"
    keys = site.admin.call("GET", path).json["keys"]
    return next(each["windows"][-1]["state"] for each in keys if each["key"] == key)


async def test_a_dead_window_is_seen_explained_and_tried_again(
    site: Site, own: str, visit: Visit
) -> None:
    site.admin.push(*({"queue": own, "partition": "k", "payload": n} for n in range(2)))
    define_counts(site.admin, own, own)
    settle(site.admin, poll(site.admin, own), success=False, error=ERROR)
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/streams/{quote(own)}")
    await page.get_by_role("button", name="k: dead").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_text(ERROR).wait_for()
    await dialog.get_by_text("given up after 1 tries").wait_for()
    await dialog.get_by_role("button", name="Retry").click()
    await page.locator(".toast").get_by_text("will be tried again").wait_for()
    await page.get_by_role("button", name="k: ready").wait_for()
    assert state_of(site, own, "k") == "ready"
    assert poll(site.admin, own)["key"] == "k"
    await page.get_by_role("button", name="k: leased").click()
    await dialog.get_by_text("held by worker-1").wait_for()


async def test_all_dead_windows_of_a_group_and_its_pause(
    site: Site, own: str, visit: Visit
) -> None:
    for key in ("a", "b"):
        site.admin.push(*({"queue": own, "partition": key, "payload": n} for n in range(2)))
    define_counts(site.admin, own, own)
    for _ in range(2):
        settle(site.admin, poll(site.admin, own), success=False, error="no")
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/streams/{quote(own)}")
    await page.get_by_role("button", name="Retry dead").click()
    await page.get_by_text("2 dead windows of totals will be handed out again.").wait_for()
    await page.get_by_role("button", name="Retry all").click()
    await page.locator(".toast").get_by_text("2 windows will be tried again").wait_for()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await page.get_by_role("button", name="Resume", exact=True).wait_for()
    groups = f"/api/v1/resources/streams/{quote(own, safe='')}/consumers"
    (group,) = site.admin.call("GET", groups).json["consumers"]
    assert (group["paused"], group["dead"]) == (True, 0)


async def test_a_pipeline_shows_how_it_is_and_what_flows_through_it(
    site: Site, visit: Visit
) -> None:
    report(site.admin, PIPELINE, "b")
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/pipelines/{PIPELINE}")
    shown = page.locator(".numbers")
    facts = {
        "State": "running",
        "Input": "42/s",
        "Processing": "380/s",
        "Batch": "340 ms",
        "Behind sealed time": "2.4 s",
        "State rows": "240",
        "Late": "3",
    }
    for name, value in facts.items():
        number = shown.locator(".number", has=page.get_by_text(name, exact=True))
        shown_value = (await number.locator("dd").inner_text()).replace("\xa0", " ")
        assert shown_value.startswith(value), name
    runs = await shown.locator(".number", has_text="Runs").locator("dd").inner_text()
    assert int(runs.split()[0]) >= 2
    await page.get_by_text(f"AnalysisException: {ERROR}").wait_for()
    ui = page.get_by_role("link", name="Spark UI")
    assert await ui.get_attribute("href") == "http://127.0.0.1:4040"
    assert await ui.get_attribute("rel") == "noopener noreferrer"
    boxes = page.get_by_role("region", name=f"What flows through {PIPELINE}").locator("strong")
    assert set(await boxes.all_inner_texts()) == {ORDERS, PIPELINE, RESULTS}
    await page.get_by_role("button", name="Stop", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    await page.locator(".toast").get_by_text("asked to stop").wait_for()
    heard = site.admin.call(
        "POST", f"/api/v1/pipelines/{PIPELINE}/progress", {"runId": "b", "state": "running"}
    )
    assert heard.json == {"stop": True}


async def test_the_map_leads_from_queue_to_queue(visit: Visit) -> None:
    visitor = await visit("reader")
    page = visitor.page
    await visitor.open(f"/map?queue={ORDERS}")
    rows = page.get_by_role("table", name="Flows").locator("tbody tr")
    for source, target in (
        (ORDERS, COUNTS),
        (COUNTS, RESULTS),
        (ORDERS, "mapper"),
        ("mapper", RESULTS),
        (ORDERS, PIPELINE),
        (PIPELINE, RESULTS),
    ):
        await rows.filter(has_text=source).filter(has_text=target).first.wait_for()
    assert OTHER_NAMESPACE not in await page.inner_text("main")
    await page.locator(".graph-box.stream a", has_text=COUNTS).click()
    await page.wait_for_url(f"**/streams/{COUNTS}")


async def test_pending_entries_are_claimed_given_back_and_acknowledged(
    site: Site, own: str, visit: Visit
) -> None:
    add_entries(site.admin, own)
    path = f"/stream/{quote(own, safe='')}/group/workers/pending"
    visitor = await visit("writer")
    page = visitor.page
    await visitor.open(f"/stream-broker/{quote(own)}")
    pending = page.get_by_role("table", name="Pending entries")
    await pending.get_by_label("Choose row 1", exact=True).check()
    await page.get_by_role("button", name="Claim 1 chosen").click()
    await page.get_by_role("dialog").get_by_label("Consumer").fill("w2")
    await page.get_by_role("dialog").get_by_role("button", name="Claim").click()
    await page.locator(".toast").get_by_text("1 entry now with w2").wait_for()
    await pending.get_by_text("w2").wait_for()
    assert site.admin.call("GET", path).json["messages"][0]["consumer"] == "w2"
    await pending.get_by_label("Choose all rows").check()
    await page.get_by_role("button", name="Acknowledge 4").click()
    await page.get_by_text("4 entries count as done; no consumer gets them again.").wait_for()
    await page.get_by_role("dialog").get_by_role("button", name="Acknowledge").click()
    await page.get_by_text("Nothing is pending.").wait_for()
    assert site.admin.call("GET", path).json["count"] == 0


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=["script", "rtl", "long"])
async def test_names_are_text_and_the_layout_holds(name: str, visit: Visit) -> None:
    visitor = await visit()
    paths = [path.format(quote(name, safe="")) for path in _NAMED]
    for path in (*paths, f"/stream-broker/{quote(entries_of(name), safe='')}"):
        await visitor.open(path)
        assert await visitor.page.locator("script:not([src])").count() == 0
        for size in (WIDE, NARROW):
            await visitor.look(dark=False, size=size)
            assert await visitor.overflow() <= 0, (path, size)
        assert not await visitor.page.query_selector(".failure[role=alert]"), path
    listed = {"/streams": name, "/pipelines": name, "/stream-broker": entries_of(name)}
    for path, text in listed.items():
        await visitor.open(path)
        await visitor.page.get_by_role("link", name=text, exact=True).first.wait_for()
        assert await visitor.overflow() <= 0, path


async def test_who_only_reads_is_offered_no_action(visit: Visit) -> None:
    visitor = await visit("reader")
    for path in (f"/streams/{COUNTS}", f"/pipelines/{PIPELINE}", f"/stream-broker/{JOBS}"):
        await visitor.open(path)
        await visitor.page.locator("main section").first.wait_for()
        for name in ("Retry dead", "Pause", "Stop", "Forget", "Claim 0 chosen"):
            button = visitor.page.get_by_role("button", name=name, exact=True)
            assert await button.count() == 0, (path, name)


async def test_what_is_open_now_moves_without_a_reload(site: Site, own: str, visit: Visit) -> None:
    site.admin.push({"queue": own, "partition": "k", "payload": 1})
    define_counts(site.admin, own, own)
    visitor = await visit("reader")
    await visitor.open(f"/streams/{quote(own)}")
    await visitor.page.get_by_role("button", name="k: open").wait_for()
    site.admin.push({"queue": own, "partition": "k", "payload": 2})
    await visitor.page.get_by_role("button", name="k: planned").wait_for()

    async def is_closed() -> bool:
        return await visitor.page.get_by_role("button", name="k: open").count() == 0

    await until_async(is_closed)

"""Names that a browser would take out of a path: nothing is sent that would reach another thing."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.browser.conftest import Site, Visit
from tests.browser.data import ORDERS

DOTS = ".."
GROUP = "dotted readers"
REASON = "A browser cannot address a name that is only dots"


@pytest.fixture(scope="module")
def dotted(site: Site) -> Iterator[str]:
    """A queue with a partition of dots, and a queue of dots, read by one group."""
    queue = "dotted"
    for name, partition in ((queue, DOTS), (queue, "plain"), (DOTS, "plain")):
        answer = site.admin.push(*({"queue": name, "partition": partition, "payload": 1},) * 3)
        assert answer.status == 201, answer.raw
    assert _read(site, queue, "plain") and _read(site, queue, "%2E%2E") and _read(site, "%2E%2E")
    yield queue
    # Others look at lists of all queues.
    assert site.admin.call("DELETE", "/api/v1/resources/queues/%2E%2E").status == 200


def _read(site: Site, queue: str, partition: str = "plain") -> bool:
    path = f"/api/v1/pop/queue/{queue}/partition/{partition}?consumerGroup={quote(GROUP)}"
    return site.admin.call("GET", path).status == 200


async def test_a_group_is_moved_nowhere_but_where_somebody_points(
    dotted: str, visit: Visit
) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open(f"/groups/{quote(GROUP)}?queue={dotted}")
    row = page.locator("tbody tr[data-key]", has_text=DOTS)
    seek = row.get_by_role("button", name="Seek")
    assert await seek.is_disabled()
    assert REASON in (await seek.get_attribute("title") or "")
    plain = page.locator("tbody tr[data-key]", has_text="plain")
    assert await plain.get_by_role("button", name="Seek").is_enabled()


async def test_a_queue_of_dots_is_shown_and_not_acted_on(dotted: str, visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open(f"/groups/{quote(GROUP)}?queue={DOTS}")
    head = page.locator(".head")
    for act in ("Seek", "Pause", "Delete"):
        assert await head.get_by_role("button", name=act).is_disabled(), act
    for path in ("/queues?q=..", "/groups?q=dotted"):
        await visitor.open(path)
        cell = page.locator("tbody").get_by_title(REASON)
        await cell.wait_for()
        assert await cell.inner_text() == DOTS
        links = page.locator("tbody").get_by_role("link", name=DOTS, exact=True)
        assert await links.count() == 0
    assert not await page.query_selector(".failure")


@pytest.mark.parametrize("dots", [".", "..", "%2E%2e"])
async def test_no_request_leaves_for_a_name_of_dots(site: Site, dots: str, visit: Visit) -> None:
    visitor = await visit()
    await visitor.open("/queues")
    before = list(visitor.requests)
    said = await visitor.page.evaluate(
        """async ([group, queue, dots]) => {
          const { pathTo } = await import("/dashboard/lib/dom.js");
          const api = await import("/dashboard/lib/api.js");
          const parts = [group, "queues", queue, "partitions", dots, "seek"];
          const tries = [
            () => pathTo("api", "v1", "consumer-groups", ...parts),
            () => `/api/v1/consumer-groups/${parts.join("/")}`,
          ];
          if (dots.startsWith("%")) tries.shift();
          return Promise.all(tries.map(async (path) => {
            try { return JSON.stringify(await api.post(path(), { toEnd: true })); }
            catch (error) { return error.message; }
          }));
        }""",
        ["audit", ORDERS, dots],
    )
    assert said and all(text.startswith(REASON) for text in said)
    assert not any("seek" in each for each in visitor.requests[len(before) :])

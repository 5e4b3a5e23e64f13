"""The parts that pages are made of: tables of any length, charts, and updates that can be held."""

from __future__ import annotations

from tests.browser.conftest import Visit
from tests.waiting import until_async

_LONG_TABLE = """async () => {
  const { table } = await import("/dashboard/ui/table.js");
  const made = table([
    { title: "Name", value: (row) => row.name, sort: (row) => row.name },
    { title: "Number", kind: "num", value: (row) => String(row.number), sort: (row) => row.number },
  ], { name: "Long", key: (row) => row.number });
  document.querySelector(".page").replaceChildren(made.element);
  made.set(Array.from({ length: 10000 }, (_, number) => ({ number, name: `row ${number}` })));
}"""
_CHART = """async () => {
  const { chart } = await import("/dashboard/ui/chart.js");
  const made = window.made = chart("Things", { unit: String });
  document.querySelector(".page").replaceChildren(made.element);
  window.feed = (factor) => made.set([{ name: "In",
    points: Array.from({ length: 60 }, (_, at) => [at * 60000, at * factor]) }]);
  window.feed(1);
}"""

_LABELS = """async ([unit, most]) => {
  const { chart } = await import("/dashboard/ui/chart.js");
  const format = await import("/dashboard/lib/format.js");
  const made = chart("Labels", { unit: format[unit] });
  document.querySelector(".page").replaceChildren(made.element);
  made.set([{ name: "In", points: [[0, 0], [60000, most]] }]);
  return [...made.element.querySelectorAll("text.tick[text-anchor=end]")].slice(0, 3)
    .map((text) => [text.textContent, text.getBBox().x]);
}"""


async def test_ten_thousand_rows_scroll_and_sort(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open("/groups")
    await page.evaluate(_LONG_TABLE)
    rows = page.locator("tbody tr[data-key]")
    assert await rows.count() < 200
    assert await page.get_by_role("table", name="Long").get_attribute("aria-rowcount") == "10001"
    await page.locator(".table-box").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    await page.get_by_text("row 9999", exact=True).wait_for()
    await page.get_by_role("button", name="Number").click()
    await page.locator(".table-box").evaluate("box => box.scrollTo(0, 0)")
    await page.get_by_text("row 9999", exact=True).wait_for()
    assert await rows.count() < 200


async def test_a_chart_is_read_zoomed_and_held(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open("/groups")
    await page.evaluate(_CHART)
    plot = page.get_by_role("img", name="Things. In: now 59, at most 59")
    box = await plot.bounding_box()
    assert box is not None
    await plot.hover(position={"x": box["width"] / 2, "y": 60})
    await page.locator(".tip").get_by_text("In").wait_for()
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60)
    await page.mouse.up()
    await page.get_by_role("button", name="Show all").wait_for()
    await plot.focus()
    await page.keyboard.press("0")
    await page.get_by_role("button", name="Show all").wait_for(state="hidden")
    await page.keyboard.press("ArrowLeft")
    await page.locator(".chart [aria-live]").get_by_text("In 59").wait_for(state="attached")
    await page.get_by_role("button", name="Pause Things").click()
    await page.evaluate("window.feed(2)")
    assert await page.get_by_role("img", name="at most 59").count() == 1
    await page.get_by_role("button", name="Resume Things").click()
    assert await page.get_by_role("img", name="at most 118").count() == 1


async def test_the_labels_of_a_chart_fit_and_differ(visit: Visit) -> None:
    visitor = await visit()
    await visitor.open("/groups")
    for unit, most, wanted in (
        ("seconds", 199_999, ["0 s", "1 d 3 h", "2 d 7 h"]),
        ("seconds", 190, ["0 s", "1 min 40 s", "3 min 20 s"]),
        ("short", 1, ["0", "0.5", "1"]),
    ):
        labels = await visitor.page.evaluate(_LABELS, [unit, most])
        assert [text.replace("\u00a0", " ") for text, _ in labels] == wanted
        assert all(left >= 0 for _, left in labels), labels


async def test_a_page_opened_while_the_broker_is_away_opens_when_it_is_back(
    visit: Visit,
) -> None:
    visitor = await visit()
    page = visitor.page
    await visitor.open("/queues")
    await page.context.set_offline(True)
    await page.get_by_role("link", name="Schedules").click()
    failure = page.locator(".failure")
    await failure.get_by_text("The broker cannot be reached.").wait_for()
    assert "module" not in await failure.inner_text()
    await page.context.set_offline(False)
    await page.get_by_role("table", name="Scheduled messages").wait_for()
    # That requests failed is what was asked for.
    assert all("ERR_INTERNET_DISCONNECTED" in each for each in visitor.problems)
    visitor.problems.clear()


async def test_the_first_page_opens_when_the_broker_answers(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await page.route("**/api/v1/whoami", lambda route: route.abort("connectionrefused"))
    await page.goto(f"{visitor.url}/queues")
    await page.locator(".failure").get_by_text("The broker cannot be reached.").wait_for()
    await page.unroute("**/api/v1/whoami")
    await page.get_by_role("table", name="Queues").wait_for()
    assert all("ERR_CONNECTION_REFUSED" in each for each in visitor.problems)
    visitor.problems.clear()


async def test_updates_are_held_and_a_hidden_tab_asks_nothing(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    await page.clock.install()
    await visitor.open("/groups")

    def asked() -> int:
        return sum(path.startswith("/api/v1/consumer-groups") for path in visitor.requests)

    async def asks_again(before: int) -> bool:
        await page.clock.fast_forward(6000)
        return asked() > before

    await until_async(lambda: asks_again(asked()), look_s=0.05)
    await page.get_by_role("button", name="Live").click()
    await page.locator(".live", has_text="Paused").wait_for()
    before = asked()
    # Less than the 30 s after which a request that is still out would count as failed.
    for _ in range(3):
        await page.clock.fast_forward(6000)
    assert asked() == before
    await page.get_by_role("button", name="Paused").click()
    await until_async(lambda: asks_again(before), look_s=0.05)
    await page.evaluate(
        "() => { Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    await page.clock.fast_forward(6000)
    before = asked()
    for _ in range(5):
        await page.clock.fast_forward(6000)
    assert asked() == before


async def test_the_theme_follows_the_system_until_somebody_chooses(visit: Visit) -> None:
    visitor = await visit()
    page = visitor.page
    theme = "document.documentElement.dataset.theme"
    await page.emulate_media(color_scheme="dark")
    await visitor.open("/")
    assert await page.evaluate(theme) == "dark"
    await page.get_by_role("button", name="Light theme").click()
    assert await page.evaluate(theme) == "light"
    await visitor.open("/queues")
    assert await page.evaluate(theme) == "light"

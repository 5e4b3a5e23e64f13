"""Who may see what: log-in, sessions that end, roles and namespaces."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Site, Visit
from tests.browser.data import ORDERS, OTHER_NAMESPACE
from tests.browser.visitor import Visitor
from tests.security.issuer import signed

_ACTIONS = ("Push", "New queue", "Seek", "Pause", "Edit", "Clear", "Delete")
# A request as a script in the page could send it, with the token of whoever is logged in.
_SEND = """([method, path, body]) => fetch(path, {
  method, headers: { Authorization: `Bearer ${sessionStorage.getItem("queen.token")}`,
    "Content-Type": "application/json" },
  body: body === null ? undefined : JSON.stringify(body),
}).then((answer) => answer.status)"""


async def log_in(visitor: Visitor, token: str) -> None:
    await visitor.page.goto(visitor.url + "/queues")
    await visitor.page.get_by_label("Token or JWT").fill(token)
    await visitor.page.get_by_role("button", name="Log in").click()


async def test_a_token_opens_the_page_that_was_asked_for(site: Site, visit: Visit) -> None:
    visitor = await visit(None)
    await log_in(visitor, "queen_000000000000_" + "a" * 43)
    await visitor.page.get_by_text("The server does not take this token.").wait_for()
    await visitor.page.get_by_label("Token or JWT").fill(f"Bearer {site.tokens['reader']}")
    await visitor.page.get_by_role("button", name="Log in").click()
    await visitor.page.get_by_role("heading", name="Queues").wait_for()
    assert "read-only" in await visitor.page.inner_text("header.bar")
    assert await visitor.page.evaluate("[document.cookie, Object.keys(localStorage)]") == ["", []]


async def test_a_jwt_does_too(visit: Visit) -> None:
    visitor = await visit(None)
    await log_in(visitor, signed(role="admin"))
    await visitor.page.get_by_role("heading", name="Queues").wait_for()


async def test_a_session_ends_by_sign_out_idleness_and_with_the_tab(
    site: Site, visit: Visit
) -> None:
    visitor = await visit(None)
    page = visitor.page
    await log_in(visitor, site.tokens["admin"])
    await page.get_by_role("button", name="Sign out").click()
    await page.get_by_text("Signed out.").wait_for()
    assert await page.evaluate("sessionStorage.length") == 0
    await log_in(visitor, site.tokens["admin"])
    await page.get_by_role("heading", name="Queues").wait_for()
    await page.evaluate("sessionStorage.setItem('queen.touched', Date.now() - 31 * 60000)")
    await page.keyboard.press("Shift")
    await page.get_by_text("nobody used this tab for half an hour").wait_for()
    await log_in(visitor, site.tokens["admin"])
    await page.get_by_role("heading", name="Queues").wait_for()
    other = await page.context.new_page()
    await other.goto(site.url + "/queues")
    await other.get_by_role("button", name="Log in").wait_for()


async def test_a_token_that_is_revoked_ends_the_session(site: Site, visit: Visit) -> None:
    made = site.admin.create_token(name="short-lived", role="read-only").json
    visitor = await visit(None)
    await log_in(visitor, made["token"])
    await visitor.page.get_by_role("heading", name="Queues").wait_for()
    assert site.admin.call("DELETE", f"/api/v1/tokens/{made['id']}").status == 200
    # It is noticed with the next read, which may be a while off where reads are slow.
    told = visitor.page.get_by_text("The server no longer takes this token.")
    await told.wait_for(timeout=60_000)


@pytest.mark.parametrize(
    "path",
    [
        "/queues",
        f"/queues/{ORDERS}",
        f"/queues/{ORDERS}?tab=options",
        "/messages",
        f"/groups/billing?queue={ORDERS}",
    ],
)
async def test_who_only_reads_is_offered_no_action(path: str, visit: Visit) -> None:
    visitor = await visit("reader")
    await visitor.open(path)
    for name in _ACTIONS:
        assert await visitor.page.get_by_role("button", name=name, exact=True).count() == 0, name


async def test_who_only_reads_cannot_act_by_hand_either(site: Site, visit: Visit) -> None:
    visitor = await visit("reader")
    await visitor.open("/queues")
    group = f"/api/v1/consumer-groups/billing/queues/{ORDERS}"
    for method, path, body in (
        ("POST", "/api/v1/push", {"items": [{"queue": ORDERS, "payload": 1}]}),
        ("PATCH", f"/api/v1/resources/queues/{ORDERS}/options", {"options": {"retryLimit": 1}}),
        ("DELETE", f"/api/v1/resources/queues/{ORDERS}", None),
        ("DELETE", f"/api/v1/queues/{ORDERS}/clear", None),
        ("POST", f"{group}/seek", {"toEnd": True}),
        ("POST", f"{group}/pause", {}),
        ("DELETE", group, None),
        ("POST", "/api/v1/dlq/retry", {"queue": ORDERS}),
    ):
        assert await visitor.page.evaluate(_SEND, [method, path, body]) == 403, path


async def test_another_namespace_is_nowhere_to_be_seen(visit: Visit) -> None:
    visitor = await visit("shopkeeper")
    page = visitor.page
    for path in ("/", "/queues", "/groups", f"/messages?queue={ORDERS}"):
        await visitor.open(path)
        await page.wait_for_selector("main :is(.numbers, .table-box, .empty)")
        assert OTHER_NAMESPACE not in await page.inner_text("main"), path
    await visitor.open(f"/queues/{OTHER_NAMESPACE}")
    await page.get_by_text(f"Queue '{OTHER_NAMESPACE}' not found").wait_for()
    await page.keyboard.press("/")
    await page.keyboard.type(OTHER_NAMESPACE)
    await page.get_by_text("Nothing has such a name.").wait_for()

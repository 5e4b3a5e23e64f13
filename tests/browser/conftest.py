"""One server, one browser, and a tab for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.async_api import Browser, async_playwright

from tests.browser.chromium import ARGUMENTS, chromium
from tests.browser.data import fill
from tests.browser.visitor import Visitor
from tests.conftest import ServerProcess
from tests.security.client import Client, Guarded
from tests.security.conftest import guarded, guarded_dsn

__all__ = ["guarded", "guarded_dsn"]

Visit = Callable[..., Awaitable[Visitor]]


@dataclass
class Site:
    """The server with its data, and tokens of everybody who may look at it."""

    server: ServerProcess
    url: str
    admin: Client
    tokens: dict[str, str]


@pytest.fixture(scope="session")
def site(guarded: Guarded) -> Iterator[Site]:
    with Client(guarded.url, guarded.token("admin")) as admin:
        fill(admin)
        tokens = {
            "admin": guarded.token("admin"),
            "writer": guarded.token("read-write"),
            "reader": guarded.token("read-only"),
            "shopkeeper": guarded.token("read-write", "shop"),
        }
        yield Site(guarded.running, guarded.url, admin, tokens)


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    program = chromium()
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=program, headless=True, args=list(ARGUMENTS)
        )
        yield started
        await started.close()


@pytest.fixture
async def visit(site: Site, browser: Browser) -> AsyncIterator[Visit]:
    """Open a tab as somebody; that nothing went wrong in it is checked when the test ends."""
    visitors: list[Visitor] = []

    async def arrive(who: str | None = "admin") -> Visitor:
        token = None if who is None else site.tokens[who]
        visitors.append(await Visitor.arrive(browser, site.url, token))
        return visitors[-1]

    yield arrive
    for visitor in visitors:
        await visitor.leave()
        assert visitor.problems == []

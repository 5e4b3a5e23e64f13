"""Somebody who looks: a tab with its own session, in which nothing may go wrong unnoticed."""

from __future__ import annotations

from playwright.async_api import Browser, ConsoleMessage, Dialog, Page, Request

WIDE, NARROW = (1280, 850), (390, 800)

# Wider than the window, here or in what scrolls below the bar.
_OVERFLOW = """() => {
  const main = document.querySelector("main");
  return Math.max(document.documentElement.scrollWidth - innerWidth,
                  main ? main.scrollWidth - main.clientWidth : 0);
}"""


class Visitor:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        # Errors in the console, scripts that broke, boxes that popped up.
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    @classmethod
    async def arrive(cls, browser: Browser, url: str, token: str | None) -> Visitor:
        width, height = WIDE
        context = await browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(20_000)
        if token is not None:
            await context.add_init_script(
                f"if (location.origin === {url!r} && !sessionStorage.getItem('queen.left'))"
                f" sessionStorage.setItem('queen.token', {token!r})"
            )
        return cls(await context.new_page(), url)

    async def leave(self) -> None:
        await self.page.context.close()

    async def open(self, path: str) -> None:
        """Go to a page and wait until it has been drawn."""
        await self.page.goto(self.url + path)
        await self.page.wait_for_selector("main h1")
        await self.page.wait_for_function("!document.querySelector('.waiting')")

    async def look(self, *, dark: bool, size: tuple[int, int]) -> None:
        """See it in another theme and size."""
        await self.page.emulate_media(color_scheme="dark" if dark else "light")
        await self.page.set_viewport_size({"width": size[0], "height": size[1]})

    async def overflow(self) -> int:
        return int(await self.page.evaluate(_OVERFLOW))

    def _console(self, message: ConsoleMessage) -> None:
        # What the server refuses is part of what these tests ask for.
        if message.type == "error" and "the server responded with a status" not in message.text:
            self.problems.append(f"console: {message.text}")

    async def _dialog(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _request(self, request: Request) -> None:
        self.requests.append(request.url.removeprefix(self.url))

"""The page to try the API: whole, self-contained, and under a strict policy."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from tests.api import Api

_PATHS = ("/docs", "/docs/docs.css", "/docs/docs.js")
_PAGES = files("queen.server").joinpath("pages")


@pytest.mark.parametrize("path", _PATHS)
def test_it_comes_with_a_policy_without_exceptions(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.status == 200 and answer.raw
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_all_it_loads_is_served(api: Api) -> None:
    page = api.call("GET", "/docs").raw.decode()
    loaded = re.findall(r'(?:src|href)="(/[^"]+)"', page)
    assert {"/docs/docs.css", "/docs/docs.js"} <= set(loaded)
    for path in loaded:
        assert api.call("GET", path).status == 200, path


@pytest.mark.parametrize("name", ["docs.html", "docs.css", "docs.js"])
def test_it_loads_nothing_from_elsewhere(name: str) -> None:
    text = _PAGES.joinpath(name).read_text()
    assert not re.search(r"https?://|url\(|@import", text)
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\sstyle=|\son\w+=\"", text)


def test_data_never_becomes_markup() -> None:
    script = _PAGES.joinpath("docs.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script)
    assert not re.search(r"localStorage|sessionStorage|document\.cookie", script)


def test_a_path_is_never_a_file(api: Api) -> None:
    for path in ("/docs/", "/docs/docs.html", "/docs/../app.py", "/docs/%2e%2e/app.py"):
        assert api.call("GET", path).status == 404, path

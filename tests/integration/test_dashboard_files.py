"""The dashboard: whole, from the broker alone, under a strict policy, and not in the way."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest

from queen.dashboard.files import PAGES, PREFIX, static_files
from queen.server.protocol.http import Request
from queen.server.routes.admin.dashboard import dashboard_routes
from tests.api import Api
from tests.conftest import ServerProcess

_STATIC = files("queen.dashboard").joinpath("static")
_SCRIPTS = {path: file.body.decode() for path, file in static_files().items() if "css" not in path}


def test_every_address_of_a_page_opens_the_dashboard(api: Api) -> None:
    for path in PAGES:
        answer = api.call("GET", path.replace("{", "a%2Fb").replace("}", ""))
        assert answer.status == 200, path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.raw == static_files()[PREFIX].body


def test_everything_comes_with_a_policy_without_exceptions(api: Api) -> None:
    for path in ("/", *(path for path in static_files() if path != PREFIX)):
        answer = api.call("GET", path)
        assert answer.status == 200, path
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_what_has_not_changed_is_not_sent_again(api: Api) -> None:
    first = api.call("GET", "/dashboard/app.js")
    again = api.call("GET", "/dashboard/app.js", None, {"If-None-Match": first.headers["etag"]})
    assert again.status == 304 and again.raw == b""
    assert api.call("GET", "/health").status == 200


def test_a_path_is_never_a_file(api: Api) -> None:
    for path in (
        "/dashboard",
        "/dashboard/",
        "/dashboard/index.html",
        "/dashboard/../files.py",
        "/dashboard/%2e%2e/files.py",
        "/nothing",
    ):
        answer = api.call("GET", path)
        assert answer.status == 404 and answer.json["code"] == "not_found", path


def test_programs_notice_nothing_of_it(api: Api) -> None:
    """What is no page answers as before, and the API document knows no page."""
    assert api.call("POST", "/", {}).status == 405
    assert api.call("GET", "/streams/v1/queries").status == 405
    assert api.call("GET", "/api/v1/nothing").status == 404
    paths = api.call("GET", "/api/v1/openapi.json").json["paths"]
    assert not [path for path in paths if path in PAGES or path.startswith(PREFIX)]


def test_pages_and_addresses_are_the_same_list() -> None:
    script = _STATIC.joinpath("pages.js").read_text()
    listed = re.findall(r'\{ path: "([^"]+)"', script)
    assert sorted(listed) == sorted(PAGES)
    for module in re.findall(r'import\("\./(pages/[^"]+)"\)', script):
        assert _STATIC.joinpath(module).is_file(), module


def test_all_that_modules_load_is_served() -> None:
    for path, script in _SCRIPTS.items():
        folder = path.rpartition("/")[0].split("/")[1:]
        for loaded in re.findall(r'(?:from |import\()"(\.[^"]+)"', script):
            parts = list(folder)
            for part in loaded.split("/"):
                parts = parts[:-1] if part == ".." else parts if part == "." else [*parts, part]
            assert "/" + "/".join(parts) in static_files(), (path, loaded)


@pytest.mark.parametrize("path", sorted(static_files()))
def test_it_loads_nothing_from_elsewhere_and_makes_no_markup(path: str) -> None:
    text = static_files()[path].body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|url\(|@import", text)
    assert not re.search(r"<script(?! type=\"module\" src=)|<style|\sstyle=\"|\son\w+=\"", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert "document.cookie" not in text


async def test_it_costs_nothing_while_nobody_looks() -> None:
    """A few bytes that were read once, and answers that are made already."""
    assert sum(len(file.body) for file in static_files().values()) < 500_000
    for route in dashboard_routes():
        request = Request("GET", route.path, "", {}, b"", connection=None)  # type: ignore[arg-type]
        assert await route.handler(request) is await route.handler(request)


def test_a_server_without_it_serves_the_api_alone(
    start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    api = start_server("--no-dashboard", "--database-url", dsn).api()
    for path in ("/", "/queues", "/dashboard/app.js"):
        assert api.call("GET", path).status == 404, path
    assert api.call("GET", "/docs").status == 200
    assert api.call("GET", "/api/v1/resources/queues").status == 200

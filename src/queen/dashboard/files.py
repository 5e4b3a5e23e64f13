"""What a browser loads: one page for every address, and the modules and styles it is made of.

The files lie beside this module and are read once. Nothing of a request ever becomes part of a
file's path: a path is looked up among those that were read, and what is not there is not served.
There is no build step; a browser gets what stands in `static`.

Addresses of pages are listed here, so that a link into the dashboard opens it while every other
unknown path stays a plain 404 for programs. `static/pages.js` has the same list with what each
page shows; a test holds the two against each other.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

# Paths below it are files; a broker has no other route there.
PREFIX = "/dashboard/"

# A part in braces is a name of the user's.
PAGES = (
    "/",
    "/queues",
    "/queues/{queue}",
    "/messages",
    "/messages/{partition}/{message}",
    "/groups",
    "/groups/{group}",
    "/dead-letters",
    "/schedules",
    "/streams",
    "/streams/{stream}",
    "/pipelines",
    "/pipelines/{pipeline}",
    "/stream-broker",
    "/stream-broker/{stream}",
    "/map",
    "/spool",
    "/system",
)

# Nothing from elsewhere, nothing inline, no frame around it.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}


class StaticFile(NamedTuple):
    body: bytes
    headers: tuple[tuple[str, str], ...]
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return every file by the path a browser asks for; the page itself is at `PREFIX`."""
    served = dict(_walk(files("queen.dashboard").joinpath("static"), PREFIX))
    served[PREFIX] = served.pop(f"{PREFIX}index.html")
    return served


def _walk(folder: Traversable, path: str) -> list[tuple[str, StaticFile]]:
    inside: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            inside += _walk(entry, f"{path}{entry.name}/")
            continue
        kind = _MEDIA_TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if kind is not None:
            inside.append((f"{path}{entry.name}", _static_file(entry.read_bytes(), kind)))
    return inside


def _static_file(body: bytes, kind: str) -> StaticFile:
    # A browser asks each time and is told that nothing has changed: an upgrade is seen at once.
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = (
        ("content-type", f"{kind}; charset=utf-8"),
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cache-control", "no-cache"),
        ("etag", etag),
    )
    return StaticFile(body, headers, etag)

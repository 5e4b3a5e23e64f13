"""Browsers: which web pages may talk to the server.

By default none but its own. A request that a page of another origin sends is refused before
it does anything: a browser sends simple requests without asking first, and a broker on
loopback trusts whoever reaches it. The same holds for a foreign name in the `Host` header,
which is how a page reaches loopback by a DNS name of its own.

A listed origin gets its preflight answered and may read the answers. No cookie is involved,
so credentials are never allowed, and there is no wildcard.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from queen.errors import Forbidden, StartupError
from queen.server.protocol.http import Headers, Request, Response

_PREFLIGHT: Headers = (
    ("access-control-allow-methods", "GET, POST, PUT, PATCH, DELETE"),
    ("access-control-allow-headers", "authorization, content-type"),
    ("access-control-max-age", "600"),
)


class Origins:
    def __init__(self, allowed: Iterable[str] = (), *, local_names_only: bool = False) -> None:
        self._allowed = frozenset(allowed)
        self._local_names_only = local_names_only
        for origin in self._allowed:
            _check_origin(origin)

    def admit(self, request: Request) -> Response | None:
        """Raise `Forbidden` for a page that may not ask; return the answer to a preflight."""
        host = request.headers.get(b"host", b"")
        if self._local_names_only and not is_local_name(host):
            raise Forbidden("this server answers to local names only; see --insecure and --auth")
        origin = request.headers.get(b"origin")
        if origin is None:
            return None
        listed = origin.decode("latin-1") in self._allowed
        if not listed and origin.partition(b"://")[2] != host:
            raise Forbidden("pages of this origin may not talk to the server; see --cors-origin")
        asks = b"access-control-request-method" in request.headers
        if listed and asks and request.method == "OPTIONS":
            return Response(204, headers=_PREFLIGHT)
        return None

    def headers_for(self, request: Request) -> Headers:
        """Return what lets a page of a listed origin read an answer."""
        origin = request.headers.get(b"origin", b"").decode("latin-1")
        if origin not in self._allowed:
            return (("vary", "origin"),)
        return (("access-control-allow-origin", origin), ("vary", "origin"))


def _check_origin(origin: str) -> None:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != origin:
        raise StartupError("--cors-origin must be like https://example.com, without a path")


# Few names, and the same ones with every request.
@lru_cache(maxsize=1024)
def is_local_name(host: bytes) -> bool:
    """Return whether nobody outside can have made a `Host`: an address, or a name without dots.

    >>> is_local_name(b"127.0.0.1:6632"), is_local_name(b"queen"), is_local_name(b"evil.example")
    (True, True, False)
    """
    text = host.decode("latin-1")
    try:
        name = urlsplit(f"//{text}").hostname or ""
        if name.endswith(".localhost") or not {".", ":"} & set(name):
            return True
        ip_address(name)
    except ValueError:
        return False
    return True

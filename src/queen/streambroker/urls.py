"""A stream broker by its URL, so that a setting swaps one for another.

memory://                    in this process, gone with it
redis://, rediss://, unix:// a Redis or Valkey server
queen://, queens://          a Queen server, over HTTP or HTTPS; a password is its token
postgresql://...             on the log in PostgreSQL, without a server of its own
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from queen.errors import BadRequest
from queen.extras import require
from queen.streambroker.interface import StreamBroker
from queen.streambroker.sync import SyncStreamBroker

_Options = dict[str, str]


def stream_broker_from_url(url: str) -> StreamBroker:
    """Return the stream broker that a URL names. Options are parameters of the URL:

    memory      max_stream_length, max_pending_messages
    redis       retry_s, timeout_s, max_connections, and those of redis-py: db, protocol, ssl_...
    queen       token, tls, retry_s, timeout_s
    postgresql  those of PostgreSQL
    """
    if not isinstance(url, str):
        raise BadRequest(f"the URL of a stream broker must be a text, not {type(url).__name__}")
    scheme = urlsplit(url).scheme
    make = _MAKERS.get(scheme)
    if make is None:
        known = ", ".join(f"{name}://" for name in _MAKERS)
        raise BadRequest(f"no stream broker has URLs that begin with {scheme!r}; known: {known}")
    return make(url)


def sync_stream_broker_from_url(url: str) -> SyncStreamBroker:
    """Return the same for a program without asyncio."""
    return SyncStreamBroker(stream_broker_from_url(url))


def _memory(url: str) -> StreamBroker:
    from queen.streambroker.local import LocalStreamBroker

    parts = urlsplit(url)
    if parts.netloc or parts.path not in ("", "/"):
        raise BadRequest("memory:// has neither host nor path: each broker has streams of its own")
    options = _options(url)
    settings = _numbers(options, {"max_stream_length": int, "max_pending_messages": int})
    _refuse_unknown("memory", options)
    return LocalStreamBroker(**settings)


def _redis(url: str) -> StreamBroker:
    from queen.streambroker.redis_backend import RedisStreamBroker

    options = _options(url)
    settings = _numbers(options, {"retry_s": float, "timeout_s": float, "max_connections": int})
    # What is left is for redis-py, which refuses what it does not know.
    left = urlunsplit(urlsplit(url)._replace(query=urlencode(options)))
    return RedisStreamBroker(left, **settings)


def _queen(url: str) -> StreamBroker:
    options = _options(url)
    parts = urlsplit(url)
    password = unquote(parts.password) if parts.password else None
    token = options.pop("token", password)
    is_secure = _truth("tls", options.pop("tls", "false")) or parts.scheme == "queens"
    settings = _numbers(options, {"retry_s": float, "timeout_s": float})
    _refuse_unknown("queen", options)
    if not parts.hostname:
        raise BadRequest("queen:// needs a host: queen://127.0.0.1:6632")
    host = parts.netloc.rpartition("@")[2]
    server = urlunsplit(("https" if is_secure else "http", host, "", "", ""))
    return load_http()(server, token=token, **settings)


def _postgresql(url: str) -> StreamBroker:
    return load_durable()(url)


def load_http() -> Callable[..., StreamBroker]:
    """Return `HttpStreamBroker`."""
    return _load("queen.streambroker.http_client", "HttpStreamBroker")


def load_durable() -> Callable[..., StreamBroker]:
    """Return `DurableStreamBroker`. It is above us: it stands on the service, which stands on the
    commands here."""
    require("server", "a stream on PostgreSQL, without a server,")
    return _load("queen.service.entries.standalone", "DurableStreamBroker")


def _load(module: str, name: str) -> Callable[..., StreamBroker]:
    return cast("Callable[..., StreamBroker]", getattr(importlib.import_module(module), name))


_MAKERS: dict[str, Callable[[str], StreamBroker]] = {
    "memory": _memory,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "queen": _queen,
    "queens": _queen,
    "postgresql": _postgresql,
    "postgres": _postgresql,
}


def _options(url: str) -> _Options:
    options: _Options = {}
    for name, value in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name in options:
            raise BadRequest(f"option {name!r} is there twice")
        options[name] = value
    return options


def _numbers(options: _Options, kinds: dict[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Take the options that are numbers."""
    settings: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in options:
            continue
        text = options.pop(name)
        try:
            settings[name] = kind(text)
        except ValueError as error:
            raise BadRequest(f"option {name!r} must be a number, not {text!r}") from error
    return settings


def _truth(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadRequest(f"option {name!r} must be true or false, not {text!r}")
    return text == "true"


def _refuse_unknown(scheme: str, options: _Options) -> None:
    if options:
        names = ", ".join(sorted(options))
        raise BadRequest(f"no such option of {scheme}:// in the URL of a stream broker: {names}")

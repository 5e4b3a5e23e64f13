"""Which server is meant, and what to show it.

A context is a server with a name of its own, kept in a file that only its user may read. Who names
a server says so in this order: `--context`, then `--url` (or `QUEEN_URL`), then `QUEEN_CONTEXT`,
then the context in use, then the server on this machine. The token of a context goes to its server
and to no other.
"""

from __future__ import annotations

import json
import os
import ssl
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import msgspec

from queen.cli.exits import NOT_FOUND, USAGE, fail
from queen.client.queen import DEFAULT_URL

_FILE = "contexts.json"


class Asked(NamedTuple):
    """What the options say that all commands of a server have."""

    context: str | None = None
    cacert: str | None = None
    log_level: str = "warning"
    # Those of url and token that were typed, and do not come from the environment.
    typed: frozenset[str] = frozenset()


_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)


def note_asked(asked: Asked) -> None:
    """Remember what the options say, for as long as the command runs."""
    _asked.set(asked)


def asked() -> Asked:
    """Return what the options say."""
    return _asked.get() or Asked()


class ContextEntry(msgspec.Struct, omit_defaults=True):
    """A server by name."""

    url: str
    token: str | None = None
    cacert: str | None = None


class ContextFile(msgspec.Struct):
    """All of them, and which is in use."""

    contexts: dict[str, ContextEntry] = {}
    current: str | None = None


class Target(NamedTuple):
    """The servers a command talks to, and how."""

    urls: list[str]
    token: str | None
    cacert: str | None
    # None when the servers were named, or are the one on this machine.
    context: str | None

    def tls(self) -> ssl.SSLContext | None:
        """Return what is trusted, when that was said."""
        if self.cacert is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.cacert)
        except (OSError, ssl.SSLError) as error:
            fail(USAGE, f"--cacert {self.cacert} is no certificate in PEM: {error}")


def contexts_path() -> Path:
    """Return where contexts are kept."""
    root = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(root) / "queen" / _FILE


def read_contexts() -> ContextFile:
    path = contexts_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=ContextFile)
    except FileNotFoundError:
        return ContextFile()
    except OSError as error:
        fail(USAGE, f"{path} cannot be read: {error.strerror}")
    except msgspec.MsgspecError as error:
        fail(USAGE, f"{path} is not a file of contexts: {error}")


def write_contexts(contexts: ContextFile) -> None:
    """Replace the file in one step; nobody but its user can read it, also not for a moment."""
    path = contexts_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(f".{os.getpid()}")
    text = json.dumps(msgspec.to_builtins(contexts), indent=2) + "\n"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    fresh.replace(path)


def find_context(name: str) -> ContextEntry:
    known = read_contexts().contexts
    if name not in known:
        listed = ", ".join(sorted(known)) or "none"
        fail(NOT_FOUND, f"there is no context {name!r}; known are: {listed} (`queen context list`)")
    return known[name]


def target_of(url: str | None, token: str | None) -> Target:
    """Return the servers that a command talks to. `url` and `token` are its options, or what the
    environment says in their place."""
    name, cacert, _, typed = asked()
    if name is not None and "url" in typed:
        fail(USAGE, "give --context or --url, not both")
    url = url or os.environ.get("QUEEN_URL")
    cacert = cacert or None
    if name is None and url:
        return Target(split_urls(url), token, cacert, None)
    name = name or os.environ.get("QUEEN_CONTEXT") or read_contexts().current
    if name is None:
        return Target([DEFAULT_URL], token, cacert, None)
    entry = find_context(name)
    typed_token = token if "token" in typed else None
    return Target(split_urls(entry.url), typed_token or entry.token, cacert or entry.cacert, name)


def split_urls(url: str) -> list[str]:
    return [part.strip() for part in url.split(",") if part.strip()]


def is_server_named(url: str | None) -> bool:
    """Return whether a server was named, in any of the ways."""
    named = asked().context or url or os.environ.get("QUEEN_CONTEXT") or read_contexts().current
    return bool(named)

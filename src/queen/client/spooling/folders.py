"""The folder of a client's spool: whose records are in it, and which this process takes.

A folder may be shared by several processes and by clients of several brokers. Each process has a
spool of its own in it, and takes over those that processes before it have left.

Records must not go to another broker than the one they were pushed to, and must not be left
behind when the same broker gets another address. So a spool has an owner: the name that the
client gives the broker, or, without one, all addresses that it knows. Two lists of addresses are
of one broker if they have one in common. Of whom the rest is, is told in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from queen.client.spooling.source import Source, sweep
from queen.client.transport.http import default_port
from queen.spool import Spool, SpoolOptions, SpoolRoot
from queen.spool.folder import HeldFolder, Identity

_log = logging.getLogger("queen.client")


def owner_of(broker: str, urls: Sequence[str]) -> str:
    """Return the name under which the records of a broker wait.

    >>> owner_of("", ["http://user:secret@Queen-2", "https://queen-1:8443"])
    'http://queen-2:6632,https://queen-1:8443'
    """
    return broker or ",".join(sorted(set(map(_address, urls))))


def _address(url: str) -> str:
    """Return the URL of a server in one spelling, and without secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return f"{parts.scheme}://{host}" + ("" if parts.port else f":{default_port(parts.scheme)}")


def owners(root: Path) -> dict[Path, str]:
    """Return all spools of a folder, and whose each of them is."""
    named: dict[Path, str] = {}
    for file in root.glob("*/identity.json"):
        # One that somebody is making, or removing.
        if file.parent.name.startswith("."):
            continue
        with suppress(OSError, msgspec.DecodeError):
            named[file.parent] = msgspec.json.decode(file.read_bytes(), type=Identity).owner
    return named


class SpoolFolder:
    """What a client has of a folder."""

    def __init__(self, path: Path, owner: str, options: SpoolOptions) -> None:
        self.path = path
        self._owner = owner
        self._options = options

    def claim(self) -> Source:
        """Return the spool that this process writes to; it may have records in it."""
        source = self._open(SpoolRoot(self.path, self._owner).claim())
        sweep(self.path)
        return source

    def adopt(self) -> list[Source]:
        """Return the spools of processes that have ended, if something waits in them."""
        return [self._open(held) for held in self._abandoned() if _has_records(held)]

    def warn_of_others(self) -> None:
        """Say whose records are here that nobody sends."""
        others = {owner for owner in owners(self.path).values() if not self._is_ours(owner)}
        for owner in sorted(others):
            abandoned = [held for held in SpoolRoot(self.path, owner).adopt() if _has_records(held)]
            for held in abandoned:
                held.let_go()
            if not abandoned:
                continue
            _log.warning(
                "%s has records for %s, which are not sent to %s; a client of that broker sends "
                'them, or this one with spool_options={"broker": "%s"}',
                self.path,
                owner,
                self._owner,
                owner,
            )

    def _is_ours(self, owner: str) -> bool:
        return not set(owner.split(",")).isdisjoint(self._owner.split(","))

    def _abandoned(self) -> Iterator[HeldFolder]:
        names = {owner for owner in owners(self.path).values() if self._is_ours(owner)}
        for owner in sorted(names):
            yield from SpoolRoot(self.path, owner).adopt()

    def _open(self, held: HeldFolder) -> Source:
        return Source(held, Spool(held, self._options))


def _has_records(held: HeldFolder) -> bool:
    """Whether something waits; what is in quarantine is left to who looks for it."""
    if any(held.path.glob("*.spool")):
        return True
    held.let_go()
    return False

"""Where the spool of a server is, and whose records it holds."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args
from urllib.parse import parse_qsl, urlsplit

from queen.errors import StartupError
from queen.service.spooling.basins import SpoolSettings
from queen.spool.folder import SpoolRoot
from queen.spool.options import SpoolOptions, SyncPolicy

_log = logging.getLogger(__name__)

# As the original broker has it.
_SYSTEM_FOLDER = Path("/var/lib/queen/buffers")
_EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class SpoolChoices:
    """What the user said of it."""

    folder: Path | None
    owner: str | None
    flush_ms: int
    flush_messages: int
    options: SpoolOptions


def spool_choices(folder: Path | None, environment: Mapping[str, str]) -> SpoolChoices:
    """Return what the environment says, in our words or in those of the original broker."""
    said = _Said(environment)
    sync = environment.get("QUEEN_SPOOL_SYNC", "interval")
    if sync not in get_args(SyncPolicy):
        raise StartupError(f"QUEEN_SPOOL_SYNC must be one of {', '.join(get_args(SyncPolicy))}")
    max_bytes = said.number("MAX_BYTES", 4 * 1024**3, 1024**2, 2**62)
    options = SpoolOptions(
        sync=cast("SyncPolicy", sync),
        max_file_records=said.number("EVENTS_PER_FILE", 1_000_000, 1, 1_000_000),
        max_bytes=max_bytes,
        # A file that is drained still takes room for a while; it must not be all there is.
        max_file_bytes=min(64 * 1024**2, max_bytes // 4),
    )
    return SpoolChoices(
        folder,
        environment.get("QUEEN_SPOOL_OWNER"),
        said.number("FLUSH_MS", 100, 0, 60_000),
        said.number("MAX_BATCH", 100, 1, 1_000_000),
        options,
    )


class _Said:
    """Whole numbers of the environment; one that is none is refused by its name."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def number(self, name: str, default: int, low: int, high: int) -> int:
        for variable in (f"QUEEN_SPOOL_{name}", f"FILE_BUFFER_{name}"):
            text = self._environment.get(variable, "")
            if not text:
                continue
            if not text.isdecimal() or not low <= int(text) <= high:
                raise StartupError(f"{variable} must be a whole number from {low} to {high}")
            return int(text)
        return default


def spool_settings(choices: SpoolChoices, url: str | None, data_dir: Path) -> SpoolSettings | None:
    """Return where the spool is; None when there is no place for one and none was asked for."""
    folder = _writable_folder(choices.folder, url, data_dir)
    if folder is None:
        _log.warning("no folder for a spool can be written: pushes fail while the database is away")
        return None
    owner = choices.owner or (_EMBEDDED if url is None else _address(url))
    _warn_about_others(SpoolRoot(folder, owner))
    return SpoolSettings(folder, owner, choices.options, choices.flush_ms, choices.flush_messages)


def _writable_folder(given: Path | None, url: str | None, data_dir: Path) -> Path | None:
    if given is not None:
        reason = _reason_against(given)
        if reason is not None:
            raise StartupError(f"the spool cannot be kept in {given}: {reason}")
        return given
    return next(
        (folder for folder in _defaults(url, data_dir) if not _reason_against(folder)), None
    )


def _defaults(url: str | None, data_dir: Path) -> Iterator[Path]:
    import platformdirs

    if url is None:
        yield data_dir / "spool"
        return
    yield _SYSTEM_FOLDER
    yield Path(platformdirs.user_state_dir("queen")) / "spool"


def _reason_against(folder: Path) -> str | None:
    """Return why files cannot be made in a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(folder, os.W_OK | os.X_OK) else "it cannot be written"


def _address(url: str) -> str:
    """Return where a database is, without who comes to it and how."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StartupError(f"the URL of the database is not one: {error}") from error
    said = dict(parse_qsl(parts.query))
    host = parts.netloc.rpartition("@")[2] or said.get("host", "localhost")
    return f"{host}{parts.path or '/'}"


def _warn_about_others(root: SpoolRoot) -> None:
    for owner in sorted(root.other_owners()):
        _log.warning(
            "the spool folder %s has records for the database %r, which are left there; if that is "
            "this one, start with QUEEN_SPOOL_OWNER=%s",
            root.path,
            owner,
            owner,
        )

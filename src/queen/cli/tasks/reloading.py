"""Starting a program again when its source has changed."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

# How often files are looked at.
_LOOK_S = 0.5


def changes(files: Iterable[str | Path]) -> dict[str, int]:
    """Return when files were changed; those that are gone are left out."""
    changed = {}
    for file in files:
        try:
            changed[str(file)] = Path(file).stat().st_mtime_ns
        except OSError:
            continue
    return changed


def files_here() -> list[Path]:
    """Return all source files below the current folder."""
    return list(Path.cwd().rglob("*.py"))


def _loaded_files() -> list[str]:
    """Return the files of modules that were loaded from the current folder."""
    here = f"{Path.cwd()}{os.sep}"
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    own = [file for file in files if file and file.startswith(here)]
    return [file for file in own if "site-packages" not in file]


async def wait_for_change() -> None:
    """Return when a file has changed that this program is made of."""
    before = changes(_loaded_files())
    # Nobody tells of it in a way that all systems have.
    while changes(before) == before:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_S)


def wait_for_any_change(before: dict[str, int]) -> None:
    """Return when a source file here has changed, or come, or gone."""
    while changes(files_here()) == before:
        time.sleep(_LOOK_S)


def start_again() -> NoReturn:
    """Become the same program, with what its files are now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606

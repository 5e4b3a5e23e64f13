"""Where Chromium is; where there is none, it is installed once.

`QUEEN_CHROMIUM` names another one. A machine on which none can be had is told what to do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Root has no sandbox, and a container often has no shared memory worth the name.
    *(("--no-sandbox",) if os.geteuid() == 0 else ()),
    "--disable-dev-shm-usage",
)


class NoBrowserError(Exception):
    """There is no Chromium and none can be installed."""


def chromium() -> str | None:
    """Return the program; None when it is the one that Playwright keeps for itself."""
    # Several processes run tests, and apt-get refuses to run twice.
    with Path(tempfile.gettempdir(), "queen-tests-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _found_or_installed()


def _found_or_installed() -> str | None:
    program = _installed()
    if program is not None:
        return program
    if os.geteuid() == 0 and shutil.which("apt-get") and _apt_install():
        return _installed()
    if _run(sys.executable, "-m", "playwright", "install", "chromium"):
        return None
    raise NoBrowserError(
        "The browser tests need Chromium, and neither apt-get nor Playwright could install it. "
        "Install it, put it on the PATH or name it by QUEEN_CHROMIUM, or leave these tests out "
        "with --ignore=tests/browser."
    )


def _installed() -> str | None:
    named = os.environ.get("QUEEN_CHROMIUM")
    if named:
        return named if Path(named).is_file() else None
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _apt_install() -> bool:
    return _run("apt-get", "update") and _run("apt-get", "install", "-y", "chromium")


def _run(*command: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, capture_output=True, timeout=280, check=False, text=True
    )
    return done.returncode == 0

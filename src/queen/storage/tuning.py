"""Settings of the embedded PostgreSQL, chosen for the machine it runs on.

Two rules come before speed. What PostgreSQL confirms is on disk, so `fsync`,
`full_page_writes` and `synchronous_commit` are on and are written out although they are the
defaults. What a message carries stays out of the log, so no statement, parameter or detail is
ever logged.

The rest follows from Queen's tables: rows are appended and dropped in bulk, a few small rows
are updated all the time, every query reads through an index and is short.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil  # type: ignore[import-untyped]

_MB = 1024 * 1024
_CGROUPS = Path("/sys/fs/cgroup")


def settings_for(memory_bytes: int, cores: int) -> dict[str, str]:
    """Return PostgreSQL settings for a machine with this much memory and this many cores.

    The embedded server shares the machine with Queen and whatever else runs there, so it
    takes less memory than a dedicated database would.

    >>> settings_for(2 * 1024**3, 2)["shared_buffers"]
    '512MB'
    """
    return {
        **_memory(memory_bytes),
        **_durability(),
        **_write_ahead_log(),
        **_planning(),
        **_vacuum(cores),
        **_sessions(),
        **_logging(),
    }


def detect() -> tuple[int, int]:
    """Return the memory in bytes and the cores that this process may use."""
    limits = [psutil.virtual_memory().total, *_cgroup_limits()]
    return min(limits), _cores()


def describe(settings: Mapping[str, str]) -> str:
    """Render settings, one per line, in the syntax of postgresql.conf.

    >>> describe({"jit": "off"})
    "jit = 'off'"
    """
    width = max(map(len, settings), default=0)
    return "\n".join(f"{name:<{width}} = {_quote(value)}" for name, value in settings.items())


def _memory(memory_bytes: int) -> dict[str, str]:
    return {
        # A quarter of the memory is the usual advice. Consumers read what was just written, so
        # more than 1 GB holds pages that nobody asks for again and slows each checkpoint.
        "shared_buffers": _megabytes(memory_bytes // 4, least=32, most=1024),
        # Not an allocation: the planner's guess at what the kernel caches. Half, not the usual
        # three quarters, because Queen's own processes live on the same machine.
        "effective_cache_size": _megabytes(memory_bytes // 2, least=64),
        # Allowed per sort and per connection. Queen's queries sort next to nothing.
        "work_mem": _megabytes(memory_bytes // 1024, least=4, most=16),
        "maintenance_work_mem": _megabytes(memory_bytes // 16, least=32, most=256),
    }


def _durability() -> dict[str, str]:
    return {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}


def _write_ahead_log() -> dict[str, str]:
    return {
        # One WAL file. The automatic value is smaller on a small machine, and then a large
        # batch writes WAL before its commit does.
        "wal_buffers": "16MB",
        # Each checkpoint is followed by full page images of every page touched again, so they
        # are kept rare. The price is a longer recovery: seconds per gigabyte.
        "max_wal_size": "4GB",
        # Recycled WAL files are overwritten in place, which is cheaper than making new ones.
        "min_wal_size": "512MB",
        "checkpoint_timeout": "15min",
        "checkpoint_completion_target": "0.9",
        # The bundled build has neither lz4 nor zstd. pglz costs more processor time than it
        # saves here: full page images are rare and message bodies are compressed already.
        "wal_compression": "off",
        # Queen gathers messages into batches before it commits. A second wait in the database
        # would only add to the first.
        "commit_delay": "0",
        # Commits flush for themselves; a busier writer would compete with them for the WAL.
        "wal_writer_delay": "200ms",
        # Clean buffers ahead of need, so that a push seldom writes out somebody else's page.
        "bgwriter_delay": "100ms",
        "bgwriter_lru_maxpages": "400",
    }


def _planning() -> dict[str, str]:
    return {
        # On solid state disks a random read costs about what a sequential one does.
        "random_page_cost": "1.1",
        # Compiling or parallelising a query that takes a millisecond makes it slower.
        "jit": "off",
        "max_parallel_workers_per_gather": "0",
    }


def _vacuum(cores: int) -> dict[str, str]:
    return {
        # Cursors and leases are updated in place all the time. Their tables are small, so
        # looking often is cheap, and a page that is pruned in time keeps its updates HOT.
        "autovacuum_naptime": "15s",
        "autovacuum_max_workers": str(min(3, max(1, cores))),
        "autovacuum_vacuum_scale_factor": "0.05",
        "autovacuum_analyze_scale_factor": "0.05",
        # Retention drops rows in bulk; at the default limit of 200 vacuum falls behind a
        # steady writer.
        "autovacuum_vacuum_cost_limit": "2000",
    }


def _sessions() -> dict[str, str]:
    return {
        "max_connections": "200",
        # Queen's transactions take milliseconds. One that idles this long belongs to a process
        # that hangs, and holds back both its locks and vacuum.
        "idle_in_transaction_session_timeout": "60s",
        # Each of these costs system calls in every statement.
        "update_process_title": "off",
        "track_io_timing": "off",
        "timezone": "UTC",
    }


def _logging() -> dict[str, str]:
    return {
        "log_min_messages": "warning",
        "log_line_prefix": "%m [%p] ",
        "log_timezone": "UTC",
        "log_checkpoints": "off",
        # The rest keeps payloads out of the log: no statement, not even one that fails, no
        # parameter, and (terse) no DETAIL or CONTEXT, which quote keys and rows. A message may
        # still quote a value that cannot be parsed as its type; bodies are bytea, which can.
        "log_statement": "none",
        "log_min_duration_statement": "-1",
        "log_min_error_statement": "panic",
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_error_verbosity": "terse",
    }


def _megabytes(size_bytes: int, *, least: int, most: int | None = None) -> str:
    size = max(size_bytes // _MB, least)
    return f"{size if most is None else min(size, most)}MB"


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _cores() -> int:
    # Affinity, not the count of the machine: a container may be pinned to some of its cores.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_limits() -> Iterator[int]:
    """Yield each memory limit that Linux control groups set on this process."""
    for path in _cgroup_limit_files():
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # Otherwise it is "max": no limit.
            yield int(text)


def _cgroup_limit_files() -> Iterator[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # No Linux, no control groups.
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            base, name = _CGROUPS, "memory.max"
        elif controllers == "memory":
            base, name = _CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        # A parent's limit binds as well. Inside a container the group named here may not be
        # visible, and then only the root of the tree carries the limit.
        folder = base / group.lstrip("/")
        yield from (level / name for level in (folder, *folder.parents))

"""Ports that nobody else takes between the moment they are chosen and the moment they are used.

A server takes a second to bind its port, and some tests start one again where another was.
A port that the system hands out could by then belong to any connection on the machine. So
ports come from below the range that systems hand out, each worker has a part of its own, and
none is given out twice.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

_FIRST, _END = 20_000, 32_000


def _own_ports() -> Iterator[int]:
    """Every port of this worker, round and round; another run of the tests begins elsewhere."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = (_END - _FIRST) // workers
    first = _FIRST + number % workers * count
    return (first + (os.getpid() * 101 + step) % count for step in itertools.count())


_ports = _own_ports()


def free_port() -> int:
    """Return a port that is free now and that no other test is given."""
    return next(port for port in itertools.islice(_ports, _END - _FIRST) if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # What a closed connection leaves behind does not keep a server from listening.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""By which name a client is known that was given none."""

from __future__ import annotations

import itertools
import os
import socket

# A name that a server takes is no longer.
_LONGEST_HOST = 200

_numbers = itertools.count(1)


def default_name() -> str:
    """Return the host, the process and the number of a client in it: `mill-3:4711:1`."""
    host = "".join(filter(str.isprintable, socket.gethostname()))[:_LONGEST_HOST]
    return f"{host}:{os.getpid()}:{next(_numbers)}"

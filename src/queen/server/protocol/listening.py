"""Sockets that a server listens on."""

from __future__ import annotations

import socket

from queen.errors import StartupError

_BACKLOG = 1024


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """Return the bound socket, or say plainly why it cannot be had.

    A shared one can be had by several processes; the kernel deals the connections out.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise StartupError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    bound.setblocking(False)
    return bound

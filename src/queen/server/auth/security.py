"""How a server is protected: who may connect, from where, and by what.

A server without authentication listens on loopback only, as Redis does in its protected mode:
the first thing a stranger on the network finds must not be an open broker.
"""

from __future__ import annotations

import logging
import resource
import ssl
from pathlib import Path

import msgspec

from queen.errors import StartupError
from queen.server.auth.options import AuthOptions, is_loopback
from queen.server.protocol.connections import ConnectionLimits
from queen.server.protocol.origins import Origins
from queen.server.protocol.rates import Rates

_log = logging.getLogger(__name__)

# Files that a server needs beside its connections.
_OTHER_FILES = 128
_MAX_FILES = 65_536


class Security(msgspec.Struct, frozen=True, kw_only=True):
    auth: AuthOptions = AuthOptions()
    # Listen beyond loopback without authentication; the network is trusted.
    insecure: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    origins: tuple[str, ...] = ()
    connections: ConnectionLimits = ConnectionLimits()
    # Requests a second of one caller; 0 sets no limit.
    rate_limit: float = 0.0

    def check(self, host: str) -> None:
        """Raise `StartupError` when a server like this must not listen on a host."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise StartupError("--tls-cert and --tls-key belong together")
        self.tls()
        Origins(self.origins)
        if is_loopback(host):
            return
        if not self.auth.is_on and not self.insecure:
            raise StartupError(
                f"refusing to listen on {host} without authentication. Listen on 127.0.0.1, turn "
                "it on (--auth tokens), put a proxy that authenticates in front, or say "
                "--insecure if the network is trusted."
            )
        if self.auth.is_on and not self.tls_cert:
            _log.warning("tokens travel in clear text: use --tls-cert, or a proxy that speaks TLS")

    def tls(self) -> ssl.SSLContext | None:
        if not self.tls_cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The error of `load_cert_chain` does not say which of the two it is about.
        _check_readable("certificate", self.tls_cert)
        _check_readable("key", self.tls_key)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise StartupError(
                f"the TLS certificate {self.tls_cert} cannot be used with the key {self.tls_key}: "
                f"{error}"
            ) from None
        return context

    def allowed_origins(self, host: str) -> Origins:
        trusts_all = not self.auth.is_on and not self.insecure and is_loopback(host)
        return Origins(self.origins, local_names_only=trusts_all)

    def rates(self) -> Rates | None:
        return Rates(self.rate_limit) if self.rate_limit else None

    def connection_limits(self) -> ConnectionLimits:
        """Return the limits, no higher than the system lets us open files."""
        room = max(_raise_file_limit() - _OTHER_FILES, 1)
        wanted = self.connections
        if room < wanted.total:
            _log.warning("the limit on open files allows %d connections", room)
        return ConnectionLimits(
            min(wanted.total, room), min(wanted.per_address, room), wanted.write_timeout_s
        )


def _check_readable(what: str, path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise StartupError(f"the TLS {what} {path} cannot be read: {error.strerror}") from None


def _raise_file_limit() -> int:
    """Ask for as many open files as we may have, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return _MAX_FILES if soft == resource.RLIM_INFINITY else soft

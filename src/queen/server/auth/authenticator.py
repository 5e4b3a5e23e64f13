"""The authenticator: who is behind a request, asked once for each.

A JWT that was found good is remembered by its hash until it ends or the keys change, so that
a busy client is verified once. Tokens of our own are looked up in memory every time. All who
fail get the same answer.
"""

from __future__ import annotations

import hashlib

from queen.errors import Unauthenticated
from queen.server.auth.access import ROLE_WORDS, Caller, Role
from queen.server.auth.claims import Claims, Verified, is_over
from queen.server.auth.keys import Keys
from queen.server.auth.options import AuthOptions
from queen.server.protocol.http import Request
from queen.service.admin.tokens import Token, Tokens, is_ours
from queen.service.upkeep.supervisor import Supervisor

_MAX_REMEMBERED = 10_000
_METRICS = frozenset({"/metrics", "/metrics/prometheus"})
_NOBODY = Caller(None, Role.OPEN)
# Whoever scrapes the metrics when they are open.
_READER = Caller(None, Role.READ)


class Authenticator:
    def __init__(self, options: AuthOptions, tokens: Tokens) -> None:
        self._tokens = tokens if options.tokens else None
        self._keys = Keys(options.jwt, self._forget) if options.jwt else None
        self._claims = Claims(options.jwt, self._keys) if options.jwt and self._keys else None
        self._open_paths = _METRICS if options.open_metrics else frozenset()
        self._remembered: dict[bytes, Verified] = {}

    async def start(self, supervisor: Supervisor) -> None:
        if self._keys is not None:
            await self._keys.start()
            if self._keys.is_fetched:
                supervisor.start("keys", self._keys.run)
        if self._tokens is not None:
            await self._tokens.start()
            supervisor.start("tokens", self._tokens.run)

    async def identify(self, request: Request, role: Role) -> Caller:
        """Return who sent a request; raises `Unauthenticated` unless the route is open."""
        if role is Role.OPEN:
            return _NOBODY
        if request.path in self._open_paths:
            return _READER
        header = request.headers.get(b"authorization")
        if not header:
            raise Unauthenticated
        digest = hashlib.sha256(header).digest()
        remembered = self._remembered.get(digest)
        if remembered is not None and not is_over(remembered):
            return remembered.caller
        return await self._identify_token(_token(header), digest)

    def remembered(self, request: Request) -> Caller | None:
        """Return who sent a request, if that was found out before; None asks for more."""
        header = request.headers.get(b"authorization")
        if not header or request.path in self._open_paths:
            return None
        remembered = self._remembered.get(hashlib.sha256(header).digest())
        if remembered is not None:
            return None if is_over(remembered) else remembered.caller
        if self._tokens is None:
            return None
        try:
            stored = self._tokens.known(_token(header))
        except Unauthenticated:
            return None
        return None if stored is None else _caller_of(stored)

    async def authenticate(self, token: str) -> Caller:
        """Return whose token it is; raises `Unauthenticated` when it is not good."""
        digest = hashlib.sha256(token.encode()).digest()
        remembered = self._remembered.get(digest)
        if remembered is not None and not is_over(remembered):
            return remembered.caller
        return await self._identify_token(_token(token.encode()), digest)

    async def _identify_token(self, token: str, digest: bytes) -> Caller:
        if is_ours(token):
            if self._tokens is None:
                raise Unauthenticated
            stored = await self._tokens.find(token)
            if stored is None:
                raise Unauthenticated
            return _caller_of(stored)
        if self._claims is None:
            raise Unauthenticated
        verified = await self._claims.verify(token)
        if is_over(verified):
            raise Unauthenticated
        self._remember(digest, verified)
        return verified.caller

    def _remember(self, digest: bytes, verified: Verified) -> None:
        if len(self._remembered) >= _MAX_REMEMBERED:
            # The oldest leaves; if it is still in use it is verified once more.
            del self._remembered[next(iter(self._remembered))]
        self._remembered[digest] = verified

    def _forget(self) -> None:
        """Verify everybody anew: a key that is gone must not be remembered."""
        self._remembered.clear()


def _caller_of(token: Token) -> Caller:
    return Caller(token.name, ROLE_WORDS[token.role], token.namespaces, f"token {token.id}")


def _token(header: bytes) -> str:
    """Return the token of a header; like the original, without `Bearer` before it too."""
    try:
        text = header.decode("ascii").strip()
    except UnicodeDecodeError:
        raise Unauthenticated from None
    if text[:7].lower() == "bearer ":
        text = text[7:].strip()
    if not text or " " in text:
        raise Unauthenticated
    return text

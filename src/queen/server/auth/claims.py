"""The rules that make a JWT a caller. RFC 8725 is the long version.

A token is three parts of which the first names an algorithm that its key agrees with. It has
an end, and a beginning that is not ahead of us; it was made by our issuer, for us. Anything
that asks for special treatment (`crit`, `b64`, encryption) is refused; keys that a token
brings along (`jwk`, `jku`, `x5u`, `x5c`) are not looked at.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jwt
import msgspec
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_decode

from queen.core.names import reason_against_name
from queen.errors import Unauthenticated
from queen.server.auth.access import Caller, Role
from queen.server.auth.keys import Key, Keys
from queen.server.auth.options import JwtOptions

_MAX_KID_CHARACTERS = 255
_SPECIAL = ("crit", "b64", "enc", "zip")
# Beyond this a number of seconds is no time any more.
_LATEST = 2**53
_REQUIRED = ["exp", "iss", "aud"]


class Verified(NamedTuple):
    caller: Caller
    # When the token ends, by the wall clock and with the leeway.
    ends_at: float


class Header(msgspec.Struct):
    alg: str
    kid: str | None = None


class Claims:
    """Verifies tokens by one configuration."""

    def __init__(self, options: JwtOptions, keys: Keys) -> None:
        self._options = options
        self._keys = keys

    async def verify(self, token: str) -> Verified:
        """Return who a token speaks for; raises `Unauthenticated` for all that is wrong."""
        header = _header(token)
        for key in await self._keys.candidates(header.kid):
            if key.algorithm == header.alg:
                claims = self._decode(token, key)
                if claims is not None:
                    return self._verify_claims(claims)
        raise Unauthenticated

    def _decode(self, token: str, key: Key) -> dict[str, Any] | None:
        options = self._options
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm],
                issuer=options.issuer,
                audience=options.audience,
                leeway=options.leeway_s,
                options={"require": _REQUIRED},
            )
        except (PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
            return None
        return claims

    def _verify_claims(self, claims: dict[str, Any]) -> Verified:
        # The library has compared them; that they are plain text is for us to say.
        if claims["iss"] != self._options.issuer or not _is_number(claims["exp"]):
            raise Unauthenticated
        subject = claims.get("sub")
        if subject is not None and (
            not isinstance(subject, str) or reason_against_name("subject", subject)
        ):
            raise Unauthenticated
        caller = Caller(subject, self._role(claims), self._namespaces(claims), "jwt")
        return Verified(caller, float(claims["exp"]) + self._options.leeway_s)

    def _role(self, claims: dict[str, Any]) -> Role:
        """Return the highest role that a token names; OPEN, which opens nothing, if none."""
        words = [claims.get(self._options.role_claim)]
        listed = claims.get(self._options.roles_claim)
        if isinstance(listed, list):
            words += listed
        roles = self._options.role_words
        return max(
            (roles[word] for word in words if isinstance(word, str) and word in roles),
            default=Role.OPEN,
        )

    def _namespaces(self, claims: dict[str, Any]) -> frozenset[str] | None:
        """Return what a token is limited to. A limit that cannot be read is not no limit."""
        if self._options.namespaces_claim not in claims:
            return None
        listed = claims[self._options.namespaces_claim]
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise Unauthenticated
        return frozenset(listed)


_header_decoder = msgspec.json.Decoder(dict[str, Any])


def _header(token: str) -> Header:
    """Return the header of a token of three parts that asks for nothing special."""
    parts = token.split(".")
    if len(parts) != 3:
        raise Unauthenticated
    try:
        raw = _header_decoder.decode(base64url_decode(parts[0]))
        header = msgspec.convert(raw, Header)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        raise Unauthenticated from None
    if any(name in raw for name in _SPECIAL):
        raise Unauthenticated
    if header.kid is not None and len(header.kid) > _MAX_KID_CHARACTERS:
        raise Unauthenticated
    return header


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < _LATEST


def is_over(verified: Verified) -> bool:
    return verified.ends_at <= time.time()

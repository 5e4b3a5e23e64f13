"""The keys that JWTs are verified with.

Every key is bound to one algorithm when it is loaded, by its type: an RSA key means RS256, an
Ed25519 key means EdDSA, a secret means HS256. What a token says of its algorithm can only
agree with that. A key id is looked up in a dictionary and nothing else is done with it.

A key set that is fetched is fetched before the server starts, then again and again in the
background. When a fetch fails the last set stays good for a day. A token with an unknown key
id causes a fetch, but at most one a minute: strangers must not make us knock at other doors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from queen.errors import StartupError, Unavailable
from queen.server.auth.options import JwtOptions

_log = logging.getLogger(__name__)

_END = "-----END PUBLIC KEY-----"
_MIN_RSA_BITS = 2048
_MAX_SET_BYTES = 1024 * 1024
_MAX_KEYS = 100
_UNKNOWN_KEY_INTERVAL_S = 60.0
_KEEP_S = 24 * 3600.0
_RETRY_S = 30.0


class Key(NamedTuple):
    algorithm: str
    key: Any


class BadKeys(Exception):
    """A key set could not be had, or is none. The message names no content of it."""


class Keys:
    """The keys of one configuration; `changed` is called when a fetched set differs."""

    def __init__(self, options: JwtOptions, changed: Callable[[], None] = lambda: None) -> None:
        self._options = options
        self._changed = changed
        self._nameless = _configured_keys(options)
        self._named: dict[str, Key] = {}
        self._raw = b""
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._failing = False
        self._fetching = asyncio.Lock()

    @property
    def is_fetched(self) -> bool:
        return bool(self._options.jwks_url or self._options.jwks_file)

    async def start(self) -> None:
        """Fetch the key set; a server without keys does not start."""
        if self.is_fetched:
            try:
                await self._fetch()
            except BadKeys as error:
                raise StartupError(f"the JWT key set cannot be used: {error}") from None

    async def candidates(self, kid: str | None) -> list[Key]:
        """Return the keys that a token with this key id may be signed with."""
        self._drop_if_old()
        if kid is None:
            return [*self._nameless, *self._named.values()]
        if kid in self._named:
            return [self._named[kid]]
        if self.is_fetched:
            await self._look_again()
            if kid in self._named:
                return [self._named[kid]]
            if self._failing and not self._nameless:
                raise Unavailable("the key set of the issuer cannot be read now")
        # Configured keys have no id; a token signed with one may still name some.
        return self._nameless

    async def _look_again(self) -> None:
        async with self._fetching:
            if time.monotonic() - self._tried_at > _UNKNOWN_KEY_INTERVAL_S:
                await self._fetch_calmly()

    async def run(self) -> None:
        """Keep a key set fresh that is fetched."""
        while True:
            every_s = self._options.jwks_refresh_s
            await asyncio.sleep(min(every_s, _RETRY_S) if self._failing else every_s)
            async with self._fetching:
                await self._fetch_calmly()

    async def _fetch_calmly(self) -> None:
        try:
            await self._fetch()
        except BadKeys as error:
            self._failing = True
            _log.warning("the JWT key set cannot be read, the last one stays: %s", error)
            self._drop_if_old()

    async def _fetch(self) -> None:
        self._tried_at = time.monotonic()
        raw = await asyncio.to_thread(_read_set, self._options)
        named, nameless = parse_set(raw, self._options.algorithm)
        self._failing = False
        self._fetched_at = time.monotonic()
        if raw != self._raw:
            self._raw, self._named = raw, named
            self._nameless = _configured_keys(self._options) + nameless
            self._changed()

    def _drop_if_old(self) -> None:
        if self._raw and time.monotonic() - self._fetched_at > _KEEP_S:
            self._raw, self._named, self._nameless = b"", {}, _configured_keys(self._options)
            self._changed()


# ---- configured keys ----


def _configured_keys(options: JwtOptions) -> list[Key]:
    keys = [Key("HS256", secret.encode()) for secret in options.secrets]
    blocks = [part + _END for part in options.public_key.split(_END) if "-----BEGIN" in part]
    if options.public_key and not blocks:
        raise StartupError("JWT_PUBLIC_KEY holds no public key in PEM")
    keys += [_pem_key(block) for block in blocks]
    if options.algorithm is not None and any(key.algorithm != options.algorithm for key in keys):
        raise StartupError(f"a JWT key is not one for JWT_ALGORITHM={options.algorithm}")
    return keys


def _pem_key(block: str) -> Key:
    try:
        key = load_pem_public_key(block.strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        raise StartupError("JWT_PUBLIC_KEY holds something that is not a public key") from None
    algorithm = _algorithm_of(key)
    if algorithm is None:
        raise StartupError("JWT_PUBLIC_KEY must be RSA with at least 2048 bits, or Ed25519")
    return Key(algorithm, key)


def _algorithm_of(key: object) -> str | None:
    if isinstance(key, RSAPublicKey) and key.key_size >= _MIN_RSA_BITS:
        return "RS256"
    return "EdDSA" if isinstance(key, Ed25519PublicKey) else None


# ---- fetched keys ----


def parse_set(raw: bytes, only: str | None) -> tuple[dict[str, Key], list[Key]]:
    """Return the usable keys of a JWK set, by their ids and those without one."""
    try:
        listed = json.loads(raw)["keys"]
        if not isinstance(listed, list) or len(listed) > _MAX_KEYS:
            raise BadKeys("it is not a list of keys")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadKeys("it is not a JWK set") from None
    named: dict[str, Key] = {}
    nameless: list[Key] = []
    for entry in listed:
        key = _parse_jwk(entry)
        if key is None or only not in (None, key.algorithm):
            continue
        if isinstance(entry.get("kid"), str):
            named[entry["kid"]] = key
        else:
            nameless.append(key)
    if not named and not nameless:
        raise BadKeys("it has no RS256 or EdDSA key for signatures")
    return named, nameless


def _parse_jwk(entry: Any) -> Key | None:
    """Return a public signing key; None for all others, and for one that contradicts itself."""
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    algorithm = {"RSA": "RS256", "OKP": "EdDSA"}.get(str(entry.get("kty")))
    if algorithm is None or entry.get("alg", algorithm) != algorithm:
        return None
    with contextlib.suppress(PyJWTError, ValueError, TypeError, KeyError):
        key = PyJWK(entry, algorithm).key
        if _algorithm_of(key) == algorithm:
            return Key(algorithm, key)
    return None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _read_set(options: JwtOptions) -> bytes:
    try:
        if options.jwks_file:
            return Path(options.jwks_file).read_bytes()[: _MAX_SET_BYTES + 1]
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        # The scheme was checked when the configuration was read.
        with opener.open(options.jwks_url, timeout=options.jwks_timeout_s) as answer:
            raw: bytes = answer.read(_MAX_SET_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise BadKeys(f"the answer is {error.code}") from None
    except (OSError, ValueError) as error:
        raise BadKeys(type(error).__name__) from None
    if len(raw) > _MAX_SET_BYTES:
        raise BadKeys("it is too large")
    return raw

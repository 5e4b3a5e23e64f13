"""What can be configured of authentication. The variables are the original broker's.

A secret has no place on a command line, where every user of the machine can read it, so JWT
is configured by the environment and by files.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from queen.errors import StartupError
from queen.server.auth.access import ROLE_WORDS, Role

ALGORITHMS = ("HS256", "RS256", "EdDSA")
MIN_SECRET_BYTES = 32
MAX_LEEWAY_S = 300
# Secrets that stand in everybody's documentation.
_EXAMPLES = {
    "a-string-secret-at-least-256-bits-long",
    "a-valid-string-secret-that-is-at-least-512-bits-long-which-is-very-long",
}
_FEWEST_DIFFERENT_CHARACTERS = 10


class JwtOptions(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str
    audience: str
    # None: each key has the one that its type allows.
    algorithm: str | None = None
    # The newest first; an old one stays good while it is listed.
    secrets: tuple[str, ...] = ()
    # One or more PEM blocks.
    public_key: str = ""
    jwks_url: str = ""
    jwks_file: str = ""
    jwks_refresh_s: float = 3600
    jwks_timeout_s: float = 5
    leeway_s: int = 30
    role_claim: str = "role"
    roles_claim: str = "roles"
    namespaces_claim: str = "namespaces"
    # What the token calls each role.
    role_words: dict[str, Role] = msgspec.field(default_factory=lambda: dict(ROLE_WORDS))

    def __repr__(self) -> str:
        return f"JwtOptions(issuer={self.issuer!r}, audience={self.audience!r}, ...)"


class AuthOptions(msgspec.Struct, frozen=True):
    tokens: bool = False
    jwt: JwtOptions | None = None
    open_metrics: bool = False

    @property
    def is_on(self) -> bool:
        return self.tokens or self.jwt is not None


def auth_options(kinds: str, env: Mapping[str, str], *, open_metrics: bool) -> AuthOptions:
    """Return what is configured, or say what is wrong with it."""
    chosen = {kind.strip() for kind in kinds.split(",") if kind.strip()}
    unknown = chosen - {"none", "tokens", "jwt"}
    if unknown:
        raise StartupError("--auth is not known: none, tokens, jwt or tokens,jwt")
    if env.get("JWT_ENABLED", "").lower() in ("true", "1"):
        chosen.add("jwt")
    return AuthOptions(
        "tokens" in chosen, jwt_options(env) if "jwt" in chosen else None, open_metrics
    )


def jwt_options(env: Mapping[str, str]) -> JwtOptions:
    secrets = tuple(env[name] for name in ("JWT_SECRET", "JWT_SECRET_PREVIOUS") if env.get(name))
    options = JwtOptions(
        issuer=_require(env, "JWT_ISSUER"),
        audience=_require(env, "JWT_AUDIENCE"),
        algorithm=_algorithm(env),
        secrets=secrets,
        public_key=_public_key(env),
        jwks_url=_jwks_url(env),
        jwks_file=env.get("JWT_JWKS_FILE", ""),
        jwks_refresh_s=_number(env, "JWT_JWKS_REFRESH_INTERVAL", 3600, 1, 86400),
        jwks_timeout_s=_number(env, "JWT_JWKS_TIMEOUT_MS", 5000, 1, 60_000) / 1000,
        leeway_s=_number(env, "JWT_CLOCK_SKEW", 30, 0, MAX_LEEWAY_S),
        role_claim=env.get("JWT_ROLES_CLAIM", "role"),
        roles_claim=env.get("JWT_ROLES_ARRAY_CLAIM", "roles"),
        namespaces_claim=env.get("JWT_NAMESPACES_CLAIM", "namespaces"),
        role_words={
            env.get("JWT_ROLE_READ_ONLY", "read-only"): Role.READ,
            env.get("JWT_ROLE_READ_WRITE", "read-write"): Role.WRITE,
            env.get("JWT_ROLE_ADMIN", "admin"): Role.ADMIN,
        },
    )
    for secret in secrets:
        _check_secret(secret)
    if len(options.role_words) != 3:
        raise StartupError("JWT_ROLE_ADMIN, JWT_ROLE_READ_WRITE and JWT_ROLE_READ_ONLY must differ")
    if not (secrets or options.public_key or options.jwks_url or options.jwks_file):
        raise StartupError(
            "JWT is on and no key is configured: set JWT_SECRET, JWT_PUBLIC_KEY, JWT_JWKS_URL or "
            "JWT_JWKS_FILE"
        )
    return options


def _require(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise StartupError(
            f"JWT is on and {name} is not set: a token for another service must not open this one"
        )
    return value


def _number(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name) or str(default)
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise StartupError(f"{name} must be a whole number between {low} and {high}")
    return value


def _algorithm(env: Mapping[str, str]) -> str | None:
    """Return the only algorithm allowed. `auto` takes it from each key, never from a token."""
    algorithm = env.get("JWT_ALGORITHM") or "auto"
    if algorithm == "auto":
        return None
    if algorithm not in ALGORITHMS:
        raise StartupError(f"JWT_ALGORITHM is not known: {', '.join(ALGORITHMS)} or auto")
    return algorithm


def _public_key(env: Mapping[str, str]) -> str:
    """Return PEM text; the variable may hold it, with \\n for line ends, or name a file."""
    value = env.get("JWT_PUBLIC_KEY", "")
    if not value or "-----BEGIN" in value:
        return value.replace("\\n", "\n")
    try:
        return Path(value).read_text()
    except OSError as error:
        raise StartupError(f"JWT_PUBLIC_KEY is neither PEM nor a file: {error.strerror}") from None


def _jwks_url(env: Mapping[str, str]) -> str:
    url = env.get("JWT_JWKS_URL", "")
    if url:
        parts = urlsplit(url)
        plain = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if not parts.hostname or not (parts.scheme == "https" or plain):
            raise StartupError("JWT_JWKS_URL must begin with https:// (http:// only on loopback)")
    return url


def _check_secret(secret: str) -> None:
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise StartupError(
            f"a JWT secret must have at least {MIN_SECRET_BYTES} bytes; "
            "`openssl rand -hex 32` makes one"
        )
    if secret in _EXAMPLES or len(set(secret)) < _FEWEST_DIFFERENT_CHARACTERS:
        raise StartupError(
            "a JWT secret is an example or easy to guess; `openssl rand -hex 32` makes one"
        )


def is_loopback(host: str) -> bool:
    """Return whether an address or name can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False

"""Tokens that the broker gives out itself.

    queen_<id>_<secret>      the id names a row, the secret is 32 random bytes

Only the hash of the secret is stored, so a copy of the database opens no door. Every server
keeps all tokens in memory and asks every few seconds what has changed: a request costs no
question to the database, a stranger who guesses ids costs none either, and what was revoked
at one server is refused by all of them within seconds.

While the database does not answer, what it last said stands for an hour: nobody can revoke
anything then. Of a token that it has not told of, and of all of them after that hour, nobody can
say whether it is good, and that is what its owner hears.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from typing import Any, NamedTuple

from queen.core.names import reason_against_name
from queen.errors import BadRequest, Conflict, QueenError, Unavailable
from queen.storage.database import Database, Record

_log = logging.getLogger(__name__)

ROLES = ("admin", "read-write", "read-only")
MAX_LIFETIME_S = 100 * 366 * 86400
_REFRESH_S = 3.0
# For ids that are not known the database is asked, but no more often than this.
_ASK_AGAIN_S = 0.5
_NOTE_USE_S = 60.0
# For so long what the database said last is trusted while it is away.
_TRUSTED_S = 3600.0

_SHAPE = re.compile(r"queen_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = hashlib.sha256(b"nobody").digest()


class Token(NamedTuple):
    """A token as a server remembers it."""

    id: str
    name: str
    hash: bytes
    role: str
    namespaces: frozenset[str] | None
    revoked: bool
    # By the monotonic clock; infinity when it never ends.
    ends_at: float


class NewToken(NamedTuple):
    id: str
    # Shown once; nobody can find it out again.
    text: str


def is_ours(text: str) -> bool:
    """Return whether a text looks like a token of ours rather than a JWT."""
    return text.startswith("queen_")


class Tokens:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._tokens: dict[str, Token] = {}
        # All transactions before this one are over, and what they changed is known.
        self._since = 0
        self._asked_at = float("-inf")
        self._told_at = float("-inf")
        # Before that nothing can be said of a token, good or bad.
        self._is_loaded = False
        self._asking = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._used: set[str] = set()

    # ---- making and ending them ----

    async def create(
        self,
        name: str,
        role: str,
        namespaces: list[str] | None,
        lifetime_s: int | None,
        by: str,
    ) -> NewToken:
        """Store a new token and return it; its text is never to be had again."""
        check_new_token(name, role, namespaces, lifetime_s)
        new, row = _make(name, role, namespaces, lifetime_s, by)
        if await self._database.findval("create_token", *row) is None:
            raise Conflict("the id of the new token was taken; ask again")
        await self.refresh()
        return new

    async def page(self, among: frozenset[str] | None, limit: int, offset: int = 0) -> list[Record]:
        """Return tokens, newest first; `among` limits them to those of some namespaces."""
        return await self._database.fetch("list_tokens", _sorted(among), limit, offset)

    async def revoke(self, token_id: str, among: frozenset[str] | None) -> bool:
        """End a token; false when there is none."""
        revoked_id = await self._database.findval("revoke_token", token_id, _sorted(among))
        await self.refresh()
        return revoked_id is not None

    async def first(self) -> NewToken | None:
        """Return a new admin token if nobody has one, so that somebody can come in."""
        async with self._database.transaction() as transaction:
            await transaction.execute("lock_first_token")
            if await transaction.fetchval("has_admin_token"):
                return None
            new, row = _make("first", "admin", None, None, "queen serve")
            await transaction.findval("create_token", *row)
        return new

    # ---- knowing them ----

    async def find(self, text: str) -> Token | None:
        """Return the token that a text is, if it is good; raises when that cannot be told."""
        match = _SHAPE.fullmatch(text)
        if match is None:
            return None
        token_id, secret = match.groups()
        if not self._is_loaded:
            await self.refresh()
        token = self._tokens.get(token_id)
        if token is None:
            asked_from = time.monotonic()
            await self._ask_again()
            token = self._tokens.get(token_id)
            if token is None and self._told_at < asked_from:
                raise Unavailable("The database does not answer, and this token is not known yet")
        if not self._are_trusted:
            raise Unavailable("The database has not answered for too long to trust tokens")
        return self._checked(token_id, secret)

    def known(self, text: str) -> Token | None:
        """Return the same if nobody has to be asked for it. None says nothing about the token."""
        match = _SHAPE.fullmatch(text)
        if match is None or not self._is_loaded or not self._are_trusted:
            return None
        return self._checked(*match.groups())

    @property
    def _are_trusted(self) -> bool:
        """Whether the database has told lately which there are."""
        return self._told_at >= time.monotonic() - _TRUSTED_S

    def _checked(self, token_id: str, secret: str) -> Token | None:
        """Return a token if it is known, the secret is its own, and it is still good."""
        token = self._tokens.get(token_id)
        matches = hmac.compare_digest(token.hash if token else _NOBODY, _hash(secret))
        if token is None or not matches or token.revoked or token.ends_at <= time.monotonic():
            return None
        self._used.add(token_id)
        return token

    async def start(self) -> None:
        """Learn all there are; without a database, when somebody first shows one."""
        await self._refresh_calmly()

    async def refresh(self) -> None:
        """Learn what has changed."""
        async with self._asking:
            self._asked_at = time.monotonic()
            rows = await self._database.fetch("tokens_since", self._since)
            (reached,) = (row["since"] for row in rows if row["id"] is None)
            if reached < self._since:
                # Another database stands where ours was; its transactions count anew.
                rows = await self._database.fetch("tokens_since", 0)
                self._tokens.clear()
            for row in rows:
                if row["id"] is not None:
                    self._tokens[row["id"]] = _token(row)
            self._since = reached
            self._told_at = time.monotonic()
            self._is_loaded = True

    async def _ask_again(self) -> None:
        """Another server may have just made a token: ask once for all who wait to know."""
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._ask_soon())
        await asyncio.shield(self._next)

    async def _ask_soon(self) -> None:
        await asyncio.sleep(max(0.0, self._asked_at + _ASK_AGAIN_S - time.monotonic()))
        await self._refresh_calmly()

    async def _refresh_calmly(self) -> None:
        was_told = self._told_at >= self._asked_at
        try:
            await self.refresh()
        except QueenError as error:
            if was_told:
                _log.warning("tokens could not be read: %s", error)

    async def run(self) -> None:
        """Stay up to date, and note now and then which tokens are in use."""
        noted_at = time.monotonic()
        while True:
            await asyncio.sleep(_REFRESH_S)
            await self._refresh_calmly()
            if self._used and time.monotonic() - noted_at > _NOTE_USE_S:
                noted_at = time.monotonic()
                await self._note_use()

    async def _note_use(self) -> None:
        used, self._used = list(self._used), set()
        try:
            await self._database.execute("touch_tokens", used)
        except QueenError as error:
            _log.warning("the use of tokens could not be noted: %s", error)


def _make(
    name: str, role: str, namespaces: list[str] | None, lifetime_s: int | None, by: str
) -> tuple[NewToken, tuple[Any, ...]]:
    """Return a new token and the row that is stored of it."""
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    row = (token_id, name, _hash(secret), role, namespaces, by, lifetime_s)
    return NewToken(token_id, f"queen_{token_id}_{secret}"), row


def check_new_token(
    name: str, role: str, namespaces: list[str] | None, lifetime_s: int | None
) -> None:
    """Raise `BadRequest` when a token like this cannot be made."""
    reason = reason_against_name("token", name)
    for namespace in namespaces or []:
        reason = reason or reason_against_name("namespace", namespace)
    if reason:
        raise BadRequest(reason)
    if role not in ROLES:
        raise BadRequest(f"role is not known: {', '.join(ROLES)}")
    if namespaces is not None and not 0 < len(namespaces) <= 100:
        raise BadRequest("namespaces must hold between 1 and 100 names, or be left out for all")
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_LIFETIME_S:
        raise BadRequest(f"the lifetime must be between 1 and {MAX_LIFETIME_S} seconds")


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _token(row: Any) -> Token:
    namespaces, left_s = row["namespaces"], row["left_s"]
    return Token(
        row["id"],
        row["name"],
        row["hash"],
        row["role"],
        None if namespaces is None else frozenset(namespaces),
        row["revoked"],
        float("inf") if left_s is None else time.monotonic() + left_s,
    )

"""Tokens and the audit trail, as they stand on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec


class CreateTokenRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    name: str
    role: str
    namespaces: list[str] | None = None
    expires_in_seconds: Annotated[int, msgspec.Meta(ge=1)] | None = None


class CreatedToken(msgspec.Struct, rename="camel"):
    id: str
    # The only time that it is shown.
    token: str
    name: str
    role: str
    namespaces: list[str] | None


class TokenRow(msgspec.Struct, rename="camel"):
    id: str
    name: str
    role: str
    namespaces: list[str] | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenList(msgspec.Struct):
    tokens: list[TokenRow]


class RevokedToken(msgspec.Struct):
    id: str
    revoked: bool


class AuditEntry(msgspec.Struct):
    id: int
    at: datetime
    actor: str
    credential: str
    address: str
    act: str
    target: str
    outcome: str
    detail: dict[str, Any]


class AuditPage(msgspec.Struct):
    entries: list[AuditEntry]
    # What to send as `before` for the next page; null when this is the last.
    next: int | None


class WhoAmI(msgspec.Struct, rename="camel"):
    """The caller of a request, as the server knows it."""

    # The subject of the token; null when the server asks nobody for one.
    subject: str | None
    # `read-only`, `read-write` or `admin`.
    role: str
    # The only namespaces that exist for the caller; null means all.
    namespaces: list[str] | None
    # Whether a token was needed to get here.
    authenticated: bool

"""Tokens, and the trail of what administrators have done."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from queen.errors import BadRequest, Forbidden, NotFound
from queen.server.api.audit import audit
from queen.server.api.failures import decode_body
from queen.server.api.paging import limit_of, limit_param, page_of, page_params
from queen.server.api.routing import Doc, Param, Route
from queen.server.auth.access import ROLE_WORDS, Caller, Role
from queen.server.protocol.http import Query, Request, Response
from queen.service.broker import Broker
from queen.wire.admin.access import (
    AuditEntry,
    AuditPage,
    CreatedToken,
    CreateTokenRequest,
    RevokedToken,
    TokenList,
    TokenRow,
    WhoAmI,
)

_decoder = msgspec.json.Decoder(CreateTokenRequest)

_MAX_ID = 2**63 - 1
_ENTRY_ID = Annotated[int, msgspec.Meta(ge=0, le=_MAX_ID)]
_WORDS = {role: word for word, role in ROLE_WORDS.items()}
_EXAMPLE = {"name": "billing", "role": "read-write", "namespaces": ["shop"]}


class AccessRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/whoami", Role.READ, self.whoami, _WHOAMI, scoped=True),
            Route("POST", "/api/v1/tokens", Role.ADMIN, self.create, _CREATE, scoped=True),
            Route("GET", "/api/v1/tokens", Role.ADMIN, self.page, _LIST, scoped=True),
            Route("DELETE", "/api/v1/tokens/{id}", Role.ADMIN, self.revoke, _REVOKE, scoped=True),
            Route("GET", "/api/v1/system/audit", Role.ADMIN, self.trail, _TRAIL),
        ]

    async def whoami(self, request: Request) -> Response:
        caller = request.caller
        namespaces = None if caller.namespaces is None else sorted(caller.namespaces)
        answer = WhoAmI(
            caller.subject, _WORDS[caller.role], namespaces, authenticated=bool(caller.credential)
        )
        return Response(200, msgspec.json.encode(answer))

    async def create(self, request: Request) -> Response:
        sent = decode_body(_decoder, request.body)
        _check_reach(request.caller, sent.namespaces)
        by = request.caller.subject or "anonymous"
        made = await self._broker.tokens.create(
            sent.name, sent.role, sent.namespaces, sent.expires_in_seconds, by
        )
        await audit(
            self._broker,
            request,
            "token.create",
            made.id,
            name=sent.name,
            role=sent.role,
            namespaces=sent.namespaces,
        )
        answer = CreatedToken(made.id, made.text, sent.name, sent.role, sent.namespaces)
        return Response(201, msgspec.json.encode(answer))

    async def page(self, request: Request) -> Response:
        query = Query(request.query)
        limit, offset = page_of(query, 100)
        rows = await self._broker.tokens.page(request.caller.namespaces, limit, offset)
        return Response(
            200, msgspec.json.encode(TokenList([TokenRow(**dict(row)) for row in rows]))
        )

    async def revoke(self, request: Request) -> Response:
        token_id = request.params[0]
        if not token_id.isalnum() or not await self._broker.tokens.revoke(
            token_id, request.caller.namespaces
        ):
            raise NotFound("Token not found")
        await audit(self._broker, request, "token.revoke", token_id)
        return Response(200, msgspec.json.encode(RevokedToken(token_id, revoked=True)))

    async def trail(self, request: Request) -> Response:
        query = Query(request.query)
        limit = limit_of(query, 100)
        before = query.number("before", _MAX_ID, 0, _MAX_ID)
        actor, act = query.text("actor"), query.text("act")
        if "\0" in actor + act:
            raise BadRequest("actor and act have no NUL characters")
        rows = await self._broker.audit_trail.page(before, limit, actor, act)
        entries = [_entry(row) for row in rows]
        following = entries[-1].id if len(entries) == limit else None
        return Response(200, msgspec.json.encode(AuditPage(entries, following)))


def _check_reach(caller: Caller, namespaces: list[str] | None) -> None:
    """Raise `Forbidden` when a token would see more than the one who makes it."""
    if caller.namespaces is None:
        return
    if namespaces is None or not caller.namespaces.issuperset(namespaces):
        raise Forbidden("a token cannot be made for namespaces that are not yours")


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(**{**dict(row), "detail": msgspec.json.decode(row["detail"])})


_WHOAMI = Doc(
    "access",
    "Who is asking",
    "The role and the namespaces of the caller, so that a page can leave out what would be "
    "refused. Every route checks them again.",
    answers={200: WhoAmI},
)
_CREATE = Doc(
    "access",
    "Make a token",
    "The token is shown in this answer and never again; only its hash is stored.",
    body=CreateTokenRequest,
    answers={201: CreatedToken},
    example=_EXAMPLE,
)
_LIST = Doc(
    "access",
    "List tokens",
    "Newest first, without their secrets.",
    query=(*page_params(100),),
    answers={200: TokenList},
)
_REVOKE = Doc(
    "access",
    "Revoke a token",
    "All servers refuse it within a few seconds.",
    answers={200: RevokedToken},
    path=(Param("id", str, "The id of a token.", example="tok_example"),),
)
_TRAIL = Doc(
    "access",
    "Read the audit trail",
    "Who has changed what, newest first.",
    query=(
        limit_param(100),
        Param("before", _ENTRY_ID, "Only entries before this id."),
        Param("actor", str, "Only what this subject has done.", ""),
        Param("act", str, "Only this act, such as `queue.delete`.", ""),
    ),
    answers={200: AuditPage},
)

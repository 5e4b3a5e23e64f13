"""The API document: OpenAPI 3.1, made from what the routes declare.

Nothing here is written twice. Paths, roles and parameters are those the router uses, schemas
come from the structs that requests are decoded with and answers are checked against, and the
errors from the table that gives each its status. What a route cannot know of itself, because
it is the same for all, is added here: the errors of every request, of every request with a
body, of every request that needs a role.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from queen import __version__
from queen.server.api.failures import STATUS
from queen.server.api.routing import Doc, Other, Param, Route
from queen.server.auth.access import Role
from queen.server.protocol.http import MAX_BODY_BYTES
from queen.wire.parts import LeaseId, Name
from queen.wire.results import Error

_SCHEMAS = "#/components/schemas/{name}"
_RESPONSES = "#/components/responses/"
_PREFIX = "/api/v1"

_ABOUT = f"""\
Queen stores messages in queues and hands them out to consumers, one lease at a time.

**Names.** Queues, partitions, groups and labels are printable text of at most 255 bytes. In a
path they are percent-encoded; an encoded slash stays part of the name.

**Errors.** Every answer with a status of 400 or more is an `Error`: `code` is stable,
`retryable` says whether the same request may succeed later, and then `Retry-After` says when.
`outcome: "unknown"` means that the database broke off during a commit: repeat the request
with the same transaction ids. A path that exists answers other methods with 405 and `Allow`;
one that does not, with 404. A head of more than 16 KiB is refused with 431, a body of more
than {MAX_BODY_BYTES // 1024**2} MiB with 413.

**Access.** An operation needs the role that its description names; a higher role may do all
that a lower one may: `open` < `read` < `write` < `admin`. Without authentication configured,
everybody is `admin` and the server listens on loopback only.
"""

# What a part of a path means, unless the route says otherwise. The tests make the things that
# the examples name before they send them.
_PARTS = {
    part.name: part
    for part in (
        Param("queue", Name, "The name of a queue.", example="orders"),
        Param("partition", Name, "The name of a partition.", example="Default"),
        Param("group", Name, "The name of a consumer group.", example="billing"),
        Param("stream", Name, "The name of a stream.", example="user-behaviour"),
        Param("pipeline", Name, "The name of a pipeline.", example="orders-per-minute"),
        Param("schedule", Name, "The name of a schedule.", example="nightly-report"),
        Param(
            "lease",
            LeaseId,
            "A lease that a pop answered.",
            example="6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
        ),
    )
}

_ERRORS = {
    400: "The request is malformed; `error` names the field and the reason.",
    401: "No valid token came with the request.",
    403: "The token's role does not allow this.",
    404: "The named thing does not exist, or the caller's namespaces do not hold it.",
    405: "The path exists, but not with this method; `Allow` lists those it has.",
    409: "The request contradicts what is stored, or the lease is no longer held.",
    413: "The body is larger than the server accepts.",
    415: "The body is compressed, or of a type that the server does not read.",
    429: "The server has too much in flight; send the same request again a little later.",
    431: "The URL or the headers are larger than the server accepts.",
    503: "The database does not answer; send the same request again a little later.",
    507: "The spool is full; send the same request again when it is drained.",
}
_ERROR_HEADERS = {
    401: ("WWW-Authenticate", "How to identify yourself.", "string"),
    405: ("Allow", "The methods of this path.", "string"),
    429: ("Retry-After", "Seconds to wait.", "integer"),
    503: ("Retry-After", "Seconds to wait.", "integer"),
    507: ("Retry-After", "Seconds to wait.", "integer"),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the API document of some routes; those without a `Doc` are left out."""
    documented = [(route, route.doc) for route in routes if route.doc is not None]
    schemas = _Schemas(_types_of(documented))
    paths: dict[str, dict[str, Any]] = {}
    for route, doc in documented:
        operation = _operation(route, doc, schemas)
        if f"{_PREFIX}{route.path}" in paths:
            operation["operationId"] += "AtRoot"
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Queen",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(doc.tag for _, doc in documented)],
        "paths": paths,
        "components": {
            "schemas": _with_codes(schemas.components),
            "responses": {
                _error_name(status): _error(status, schemas.of(Error)) for status in _ERRORS
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
            },
        },
    }


class _Schemas:
    """The schema of each type the routes name; what is shared stands among the components."""

    def __init__(self, types: Iterable[Any]) -> None:
        listed = list(types)
        schemas, self.components = msgspec.json.schema_components(listed, ref_template=_SCHEMAS)
        # By their text: not every type can be hashed.
        self._schemas = {repr(kind): schema for kind, schema in zip(listed, schemas, strict=True)}

    def of(self, kind: Any) -> dict[str, Any]:
        return self._schemas[repr(kind)]

    def any_of(self, kinds: list[Any]) -> dict[str, Any]:
        schemas = [self.of(kind) for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _types_of(documented: list[tuple[Route, Doc]]) -> Iterator[Any]:
    yield Error
    for route, doc in documented:
        for param in (*_path_params(route, doc), *doc.query):
            yield param.type
        yield doc.body
        for answer in doc.answers.values():
            yield from _json_types(answer)


def _with_codes(components: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas; the error's lists the codes there are."""
    codes = {error.code for error, status in STATUS.items() if status in _ERRORS or status == 500}
    components["Error"]["properties"]["code"]["examples"] = sorted(codes | {"method_not_allowed"})
    return components


# ---- operations ----


def _operation(route: Route, doc: Doc, schemas: _Schemas) -> dict[str, Any]:
    role = route.role.name.lower()
    about = [doc.about] if doc.about else []
    params = [_param(param, "path", schemas) for param in _path_params(route, doc)]
    params += [_param(param, "query", schemas) for param in doc.query]
    operation: dict[str, Any] = {
        "operationId": operation_id(route.method, route.path),
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": "\n\n".join([*about, f"Role: `{role}`."]),
        "x-role": role,
        "security": [{"bearer": []}] if route.role > Role.OPEN else [],
    }
    if params:
        operation["parameters"] = params
    if doc.body is not None or doc.other_body is not None:
        operation["requestBody"] = _body(doc, schemas)
    operation["responses"] = _responses(route, doc, schemas)
    return operation


def operation_id(method: str, path: str) -> str:
    """Return the name of an operation, made from its path so that it stays the same.

    >>> operation_id("GET", "/api/v1/pop/queue/{queue}")
    'getPopQueueByQueue'
    """
    parts = path.removeprefix(_PREFIX).replace("{", "by-").strip("/")
    words = [word for word in re.split(r"[^0-9A-Za-z]+", parts) if word]
    return method.lower() + "".join(word[0].upper() + word[1:] for word in words)


def _path_params(route: Route, doc: Doc) -> list[Param]:
    params = _PARTS | {param.name: param for param in doc.path}
    names = re.findall(r"{(\w+)}", route.path)
    return [params.get(name) or Param(name, Name, f"The {name}.") for name in names]


def _param(param: Param, where: str, schemas: _Schemas) -> dict[str, Any]:
    schema = dict(schemas.of(param.type))
    schema.pop("description", None)
    if param.default is not None:
        schema["default"] = param.default
    described: dict[str, Any] = {
        "name": param.name,
        "in": where,
        "description": param.about,
        "schema": schema,
    }
    if where == "path" or param.required:
        described["required"] = True
    if param.example is not None:
        described["example"] = param.example
    return described


def _body(doc: Doc, schemas: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if doc.body is not None:
        content["application/json"] = {"schema": schemas.of(doc.body)}
        if doc.example is not None:
            content["application/json"]["example"] = msgspec.to_builtins(doc.example)
    if doc.other_body is not None:
        content.update(_other(doc.other_body))
    return {"required": not doc.body_optional, "content": content}


def _other(body: Other) -> dict[str, Any]:
    schema = {"type": "string"}
    if not body.media_type.startswith("text/"):
        schema["format"] = "binary"
    if body.about:
        schema["description"] = body.about
    return {body.media_type: {"schema": schema}}


# ---- answers ----


def _responses(route: Route, doc: Doc, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[int, dict[str, Any]] = {
        status: {"$ref": _RESPONSES + _error_name(status)} for status in _errors_of(route, doc)
    }
    for status, answer in doc.answers.items():
        responses[status] = _answer(status, answer, schemas)
    if route.method == "HEAD":
        for response in responses.values():
            response.pop("content", None)
    return {str(status): responses[status] for status in sorted(responses)}


def _errors_of(route: Route, doc: Doc) -> set[int]:
    """Return the errors that a route has because of what it is."""
    statuses = {400, 431, *doc.errors}
    if route.role > Role.OPEN:
        # For a caller that is limited to namespaces, what lies outside does not exist.
        statuses |= {401, 403, 404, 429, 503}
    if doc.body is not None or doc.other_body is not None:
        statuses |= {413, 415}
    return statuses


def _answer(status: int, answer: Any, schemas: _Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {"description": _ERRORS.get(status, HTTPStatus(status).phrase)}
    content: dict[str, Any] = {}
    types = _json_types(answer)
    if types and answer is not None:
        content["application/json"] = {"schema": schemas.any_of(types)}
    for choice in _choices(answer):
        if isinstance(choice, Other):
            content |= _other(choice)
    if content:
        described["content"] = content
    return described


def _json_types(answer: Any) -> list[Any]:
    return [choice for choice in _choices(answer) if not isinstance(choice, Other)]


def _choices(answer: Any) -> tuple[Any, ...]:
    """Return what an answer may be; `Other` is a tuple too, but one answer."""
    is_several = isinstance(answer, tuple) and not isinstance(answer, Other)
    return answer if is_several else (answer,)


def _error_name(status: int) -> str:
    return re.sub(r"\W", "", HTTPStatus(status).phrase.title())


def _error(status: int, schema: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": _ERRORS[status],
        "content": {"application/json": {"schema": schema}},
    }
    if status in _ERROR_HEADERS:
        name, about, kind = _ERROR_HEADERS[status]
        response["headers"] = {name: {"description": about, "schema": {"type": kind}}}
    return response

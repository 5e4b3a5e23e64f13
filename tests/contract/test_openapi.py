"""The API document: every route is in it, and it says what is true.

That its answers are true is checked elsewhere: each answer that any contract test receives
is held against it (`hold_to_the_document`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema_rs
import pytest

from queen.core.frame import CONTENT_TYPE
from queen.server.api.app import routes
from queen.server.api.openapi import document
from queen.server.api.routing import Route
from queen.server.auth.access import Role
from queen.service.broker import Broker
from tests.api import Answer, Api
from tests.contract.rawhttp import RawConnection
from tests.documented import Documented


@pytest.fixture
async def declared(dsn: str) -> AsyncIterator[list[Route]]:
    """The routes as the server makes them."""
    broker = await Broker.start(dsn)
    yield routes(broker)
    await broker.stop()


def test_every_route_is_described(declared: list[Route]) -> None:
    for route in declared:
        where = f"{route.method} {route.path}"
        assert route.role in Role, where
        assert route.doc is not None, f"{where} has no Doc"
        assert route.doc.tag and route.doc.summary, where
        assert any(status < 400 for status in route.doc.answers), f"{where} has no good answer"


def test_every_route_is_in_the_document(declared: list[Route], documented: Documented) -> None:
    found = {(method, path): one["x-role"] for method, path, one in documented.operations()}
    assert found == {(one.method, one.path): one.role.name.lower() for one in declared}


def test_the_document_is_the_same_at_both_places(api: Api) -> None:
    assert (
        api.call("GET", "/openapi.json").raw == api.call("GET", "/api/v1/openapi.json").raw != b""
    )


def test_every_operation_has_a_name_of_its_own(documented: Documented) -> None:
    names = [one["operationId"] for _, _, one in documented.operations()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][0-9A-Za-z]+", name) for name in names)


def test_path_parameters_are_those_of_the_path(documented: Documented) -> None:
    for _, path, operation in documented.operations():
        params = operation.get("parameters", [])
        in_path = [one["name"] for one in params if one["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert all(one.get("required") for one in params if one["in"] == "path")


def test_parameters_are_described_and_their_defaults_valid(documented: Documented) -> None:
    for method, path, operation in documented.operations():
        params = operation.get("parameters", [])
        keys = [(one["in"], one["name"]) for one in params]
        assert len(set(keys)) == len(keys), (method, path)
        for one in params:
            assert one["description"], (method, path, one)
            if "default" in one["schema"]:
                jsonschema_rs.validate(one["schema"], one["schema"]["default"])


def test_the_role_decides_about_security(documented: Documented) -> None:
    for method, path, operation in documented.operations():
        open_to_all = operation["x-role"] == "open"
        assert operation["security"] == ([] if open_to_all else [{"bearer": []}]), (method, path)
        assert ("401" in operation["responses"]) is not open_to_all
        assert f"Role: `{operation['x-role']}`." in operation["description"]


def test_every_body_has_an_example_that_fits(documented: Documented) -> None:
    for method, path, operation in documented.operations():
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            continue
        if operation["requestBody"]["required"]:
            assert "example" in content, f"{method} {path} has no example"
        if "example" in content:
            whole = {**content["schema"], "components": documented.document["components"]}
            jsonschema_rs.validate(whole, content["example"])


def test_every_reference_leads_somewhere(documented: Documented) -> None:
    for reference in _references(documented.document):
        target: Any = documented.document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [found for one in node for found in _references(one)]
    if isinstance(node, dict):
        here = [node["$ref"]] if "$ref" in node else []
        return here + [found for one in node.values() for found in _references(one)]
    return []


def test_every_schema_is_one(documented: Documented) -> None:
    for schema in documented.document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )


def test_frames_are_described(documented: Documented) -> None:
    paths = documented.document["paths"]
    assert CONTENT_TYPE in paths["/api/v1/push"]["post"]["requestBody"]["content"]
    fetch = paths["/api/v1/fetch/queue/{queue}"]["get"]
    assert CONTENT_TYPE in fetch["responses"]["200"]["content"]


def test_a_retry_is_told_when(documented: Documented) -> None:
    responses = documented.document["components"]["responses"]
    for name in ("TooManyRequests", "ServiceUnavailable"):
        assert "Retry-After" in responses[name]["headers"]


def test_a_route_without_doc_is_left_out(declared: list[Route]) -> None:
    bare = [one._replace(doc=None) if one.path == "/health" else one for one in declared]
    assert "/health" not in document(bare)["paths"]


def test_the_judge_refuses_what_is_not_described(documented: Documented) -> None:
    good = b'{"deleted":true,"queue":"q","existed":false}'
    documented.check("DELETE", "/api/v1/resources/queues/q", _json(200, good))
    for status, body in (
        (200, b'{"deleted":true,"queue":"q"}'),
        (200, b'{"deleted":true,"queue":"q","existed":false,"more":1}'),
        (200, b'{"deleted":true,"queue":7,"existed":false}'),
        (201, good),
        (404, b'{"error":"no"}'),
    ):
        with pytest.raises(AssertionError):
            documented.check("DELETE", "/api/v1/resources/queues/q", _json(status, body))


def _json(status: int, body: bytes) -> Answer:
    return Answer(status, body, {"content-type": "application/json"})


def test_what_is_refused_before_it_is_a_request_looks_the_same(
    raw: RawConnection, documented: Documented
) -> None:
    raw.send(b"GET /health HTTP/9.9.9\r\n\r\n")
    answer = raw.answer()
    assert answer.status == 400
    documented.check_error(Answer(answer.status, answer.body, answer.headers))


@pytest.mark.parametrize("value", ["%00", "%20", "9" * 5000, "%F0%9F%90%9D", "%ff"])
def test_no_route_fails_over_a_strange_part_of_its_path(
    api: Api, documented: Documented, value: str
) -> None:
    for method, path, _ in documented.operations():
        if "{" in path:
            strange = re.sub(r"{\w+}", value, path)
            assert api.call(method, strange, b"{}" if method == "POST" else None).status < 500

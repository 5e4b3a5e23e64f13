"""The API document as a judge: whether an answer is one that it describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from tests.api import Answer

METHODS = ("get", "head", "post", "put", "patch", "delete")


def closed(schema: Any) -> Any:
    """Return a schema that takes no field beside those it names."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    stricter = {key: closed(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        stricter.setdefault("additionalProperties", False)
    return stricter


class Documented:
    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._components = closed(document["components"])
        self._validators: dict[str, jsonschema_rs.Draft202012Validator] = {}
        self._shapes = [(_pattern(path), path) for path in document["paths"]]
        # Exact paths first, as the router has it.
        self._shapes.sort(key=lambda pair: "{" in pair[1])

    def operations(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for path, methods in self.document["paths"].items():
            for method, operation in methods.items():
                assert method in METHODS
                yield method.upper(), path, operation

    def find(self, method: str, path: str) -> dict[str, Any] | None:
        """Return the operation of a request; None when there is no such route."""
        path = path.partition("?")[0]
        for pattern, shape in self._shapes:
            if pattern.fullmatch(path):
                found: dict[str, Any] | None = self.document["paths"][shape].get(method.lower())
                return found
        return None

    def check(self, method: str, path: str, answer: Answer) -> None:
        """Raise `AssertionError` for an answer that the document does not describe."""
        operation = self.find(method, path)
        if operation is None:
            assert answer.status >= 400, (method, path, answer)
            self.check_error(answer)
            return
        response = operation["responses"].get(str(answer.status))
        assert response is not None, f"{method} {path} answers an undocumented {answer.status}"
        if "$ref" in response:
            response = self._components["responses"][response["$ref"].rpartition("/")[2]]
        content = response.get("content", {})
        if method == "HEAD" or not content:
            assert not answer.raw, (method, path, answer)
            return
        media_type = answer.headers["content-type"].partition(";")[0]
        assert media_type in content, f"{method} {path} answers an undocumented {media_type}"
        if media_type == "application/json":
            self.validate(content[media_type]["schema"], answer.raw)

    def check_error(self, answer: Answer) -> None:
        self.validate({"$ref": "#/components/schemas/Error"}, answer.raw)

    def validate(self, schema: dict[str, Any], raw: bytes) -> None:
        key = json.dumps(schema)
        if key not in self._validators:
            whole = {**closed(schema), "components": self._components}
            self._validators[key] = jsonschema_rs.Draft202012Validator(whole, validate_formats=True)
        errors = self._validators[key].iter_errors(json.loads(raw))
        found = [f"{list(one.instance_path)}: {one.message}" for one in errors]
        assert not found, found


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"{\w+}", path)
    return re.compile("[^/]*".join(re.escape(part) for part in parts))

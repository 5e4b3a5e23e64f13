"""Write docs/reference/http.md from the API document of a real server.

    python -m tools.reference            starts a server of its own
    python -m tools.reference URL        asks the one at URL

The page is made from what is served, so it can be wrong only where the server is; a test
fails when it is not up to date.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "http.md"
_READY = "queen ready on "
# The document names its common answers after the phrases of their statuses.
_STATUS = {re.sub(r"\W", "", one.phrase.title()): one.value for one in HTTPStatus}


def render(document: dict[str, Any]) -> str:
    """Return the reference page of an API document."""
    parts = ["# HTTP API", "", "Made from the API document by `make reference`; do not edit.", ""]
    parts += [document["info"]["description"].strip(), "", *_errors(document), ""]
    for tag in document["tags"]:
        parts += [f"## {tag['name'].capitalize()}", ""]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                # HEAD is GET without its body.
                if tag["name"] in operation["tags"] and method != "head":
                    parts += [*_operation(method, path, operation), ""]
    parts += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [*_schema(name, schema), ""]
    return "\n".join(parts).rstrip() + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"### {operation['summary']}"
    yield ""
    yield f"`{method.upper()} {path}`"
    yield ""
    yield operation["description"]
    if operation.get("parameters"):
        yield ""
        yield "| parameter | in | type | what it is |"
        yield "| --- | --- | --- | --- |"
        yield from (_row(one) for one in operation["parameters"])
    body = operation.get("requestBody")
    if body:
        yield ""
        yield from _body(body)
    yield ""
    yield "| status | answer |"
    yield "| --- | --- |"
    errors = []
    for status, response in operation["responses"].items():
        if "$ref" in response:
            errors.append(status)
        else:
            yield f"| {status} | {_response(response)} |"
    yield f"| {', '.join(errors)} | [Error](#error) |"


def _errors(document: dict[str, Any]) -> Iterator[str]:
    yield "| status | what an error means |"
    yield "| --- | --- |"
    for name, response in document["components"]["responses"].items():
        yield f"| {_STATUS[name]} | {_cell(response['description'])} |"


def _row(param: dict[str, Any]) -> str:
    name = f"`{param['name']}`" + (" (required)" if param.get("required") else "")
    about = _cell(param["description"])
    return (
        f"| {name} | {param['in']} | {_type(param['schema'])} | {about}{_limits(param['schema'])} |"
    )


def _body(body: dict[str, Any]) -> Iterator[str]:
    kinds = [
        _type(one["schema"]) if kind == "application/json" else f"`{kind}`"
        for kind, one in body["content"].items()
    ]
    yield f"Body{'' if body['required'] else ', may be left out'}: {' or '.join(kinds)}"
    example = body["content"].get("application/json", {}).get("example")
    if example is not None:
        yield ""
        yield "```json"
        yield json.dumps(example, indent=2, ensure_ascii=False)
        yield "```"


def _response(response: dict[str, Any]) -> str:
    kinds = [
        _type(one["schema"]) if kind == "application/json" else f"`{kind}`"
        for kind, one in response.get("content", {}).items()
    ]
    text = _cell(response["description"])
    return f"{' or '.join(kinds)}: {text}" if kinds else text


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    if schema.get("description"):
        yield ""
        yield schema["description"]
    fields = schema.get("properties", {})
    if fields:
        yield ""
        yield "| field | type | what it is |"
        yield "| --- | --- | --- |"
    for field, one in fields.items():
        needed = " (always)" if field in schema.get("required", ()) else ""
        yield f"| `{field}`{needed} | {_type(one)} | {_cell(_about(one))}{_limits(one)} |"


def _about(schema: dict[str, Any]) -> str:
    described = [schema, *schema.get("anyOf", [])]
    return next((one["description"] for one in described if "description" in one), "")


def _type(schema: dict[str, Any]) -> str:
    """Return the type in words, with links to the schemas it is made of."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{re.sub(r'[^0-9a-z_-]', '', name.lower())})"
    if "enum" in schema:
        return " \\| ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    if "anyOf" in schema:
        return " \\| ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {', '.join(map(_type, items))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{kind} ({schema['format']})" if "format" in schema else str(kind)


def _limits(schema: dict[str, Any]) -> str:
    found = []
    low, high, default = schema.get("minimum"), schema.get("maximum"), schema.get("default")
    if low is not None and high is not None:
        found.append(f"{low} to {high}")
    elif low is not None:
        found.append(f"at least {low}")
    if "maxItems" in schema:
        found.append(f"at most {schema['maxItems']} items")
    if default is not None:
        found.append(f"default `{json.dumps(default)}`")
    return f" ({', '.join(found)})" if found else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def served(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/api/v1/openapi.json", timeout=10) as response:  # noqa: S310
        found: dict[str, Any] = json.load(response)
        return found


def served_by_own_server() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        queen = str(Path(sys.executable).parent / "queen")
        command = [queen, "serve", "--port", str(_free_port()), "--data-dir", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
            try:
                assert server.stdout is not None
                ready = next(line for line in server.stdout if line.startswith(_READY))
                return served(ready.removeprefix(_READY).split()[0])
            finally:
                server.terminate()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    document = served(sys.argv[1]) if len(sys.argv) > 1 else served_by_own_server()
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(render(document))


if __name__ == "__main__":
    main()

"""Renders the templates of a Helm chart, in that part of the language which ours are written in.

Where Helm is installed, a test compares what it renders with this. Whatever is not understood here
raises: a template that needs more has to bring it along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[()|]|[^\s()|"]+')
Node = tuple[Any, ...]
Scope = dict[str, Any]


class Failed(Exception):
    """A `required` value is not there."""


class Chart:
    """A chart, as it is rendered with some values."""

    def __init__(self, folder: Path, values: Scope | None = None, release: str = "queen") -> None:
        about = yaml.safe_load((folder / "Chart.yaml").read_text())
        defaults = yaml.safe_load((folder / "values.yaml").read_text())
        self._defined: dict[str, list[Node]] = {}
        self._root: Scope = {
            "Values": _merged(defaults, values or {}),
            "Chart": {key[0].upper() + key[1:]: value for key, value in about.items()},
            "Release": {"Name": release, "Namespace": "default", "Service": "Helm"},
        }
        self._files = sorted((folder / "templates").iterdir())
        for path in self._files:
            if path.suffix == ".tpl":
                self._render_file(path)

    def render(self) -> dict[str, str]:
        """Return the text of each file."""
        return {path.name: self._render_file(path) for path in self._files if path.suffix != ".tpl"}

    def objects(self) -> list[dict[str, Any]]:
        """Return what Kubernetes would be given."""
        texts = [text for name, text in self.render().items() if name.endswith(".yaml")]
        return [each for text in texts for each in yaml.safe_load_all(text) if each]

    def _render_file(self, path: Path) -> str:
        nodes, rest = _parse(list(_pieces(path.read_text())))
        assert not rest, f"{path.name}: {rest[0]}"
        return self._all(nodes, self._root, {"$": self._root})

    def _all(self, nodes: list[Node], dot: Any, names: Scope) -> str:
        return "".join(self._one(node, dot, names) for node in nodes)

    def _one(self, node: Node, dot: Any, names: Scope) -> str:
        match node:
            case ("text", text):
                return str(text)
            case ("define", name, body):
                self._defined[name] = body
                return ""
            case ("print", words):
                return _shown(self._value(words, dot, names))
            case ("if", words, body, otherwise):
                chosen = body if self._value(words, dot, names) else otherwise
                return self._all(chosen, dot, names)
            case ("with", words, body, otherwise):
                value = self._value(words, dot, names)
                return self._all(body if value else otherwise, value or dot, names)
            case ("range", words, body, _):
                many = self._value(words, dot, names) or []
                return "".join(self._all(body, each, names) for each in many)
        raise AssertionError(node)

    def _value(self, words: list[str], dot: Any, names: Scope) -> Any:
        """Return what a pipeline of calls gives; each gets the last one's result at its end."""
        results: list[Any] = []
        for call in _split(words):
            arguments = [self._term(word, dot, names) for word in call[1:]]
            if isinstance(call[0], str) and call[0] in _FUNCTIONS:
                results = [_FUNCTIONS[call[0]](*arguments, *results)]
            elif call[0] == "include":
                name, given = arguments
                results = [self._all(self._defined[name], given, {"$": given})]
            else:
                assert not arguments and not results, call
                results = [self._term(call[0], dot, names)]
        return results[0]

    def _term(self, word: Any, dot: Any, names: Scope) -> Any:
        if isinstance(word, list):
            return self._value(word, dot, names)
        if word.startswith('"'):
            return json.loads(word)
        if re.fullmatch(r"-?\d+", word):
            return int(word)
        assert word[0] in ".$", f"not understood: {word}"
        value = names["$"] if word[0] == "$" else dot
        for key in filter(None, word.lstrip("$").split(".")):
            value = (value or {}).get(key)
        return value


def _merged(defaults: Scope, given: Scope) -> Scope:
    both = dict(defaults)
    for key, value in given.items():
        old = both.get(key)
        is_deep = isinstance(old, dict) and isinstance(value, dict)
        both[key] = _merged(old or {}, value) if is_deep else value
    return both


def _pieces(text: str) -> Iterator[Node]:
    """Cut a template into texts and actions; a dash takes the white space on its side away."""
    at = 0
    for found in re.finditer(r"\{\{(-)?\s*(/\*.*?\*/|.*?)\s*(-)?\}\}", text, re.DOTALL):
        before = text[at : found.start()]
        yield ("text", before.rstrip() if found[1] else before)
        at = found.end()
        if found[3]:
            at += len(text[at:]) - len(text[at:].lstrip())
        if not found[2].startswith("/*"):
            yield ("action", _WORD.findall(found[2]))
    yield ("text", text[at:])


def _parse(pieces: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes up to an `else` or `end`, and what comes from there on."""
    nodes: list[Node] = []
    while pieces:
        kind, content = pieces[0]
        word = content[0] if kind == "action" else ""
        if word in ("else", "end"):
            return nodes, pieces
        pieces = pieces[1:]
        if word in ("if", "with", "range", "define"):
            node, pieces = _parse_block(word, content[1:], pieces)
            nodes.append(node)
        else:
            nodes.append((kind, content) if kind == "text" else ("print", content))
    return nodes, []


def _parse_block(word: str, about: list[str], pieces: list[Node]) -> tuple[Node, list[Node]]:
    body, rest = _parse(pieces)
    otherwise: list[Node] = []
    if rest[0][1][0] == "else":
        assert len(rest[0][1]) == 1, f"not understood: {rest[0][1]}"
        otherwise, rest = _parse(rest[1:])
    assert rest[0][1] == ["end"]
    if word == "define":
        return ("define", json.loads(about[0]), body), rest[1:]
    return (word, about, body, otherwise), rest[1:]


def _split(words: list[str]) -> list[list[Any]]:
    """Return the calls between the bars; what is in parentheses is a list of its own."""
    calls: list[list[Any]] = [[]]
    stack: list[list[Any]] = []
    for word in words:
        if word == "(":
            stack.append([])
        elif word == ")":
            inner = stack.pop()
            (stack[-1] if stack else calls[-1]).append(inner)
        elif stack:
            stack[-1].append(word)
        elif word == "|":
            calls.append([])
        else:
            calls[-1].append(word)
    return calls


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _to_yaml(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=False)).rstrip("\n")


def _nindent(count: int, text: str) -> str:
    return "\n" + "\n".join(" " * count + line if line else line for line in text.split("\n"))


def _required(text: str, value: Any) -> Any:
    if value in (None, ""):
        raise Failed(text)
    return value


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "default": lambda otherwise, value: value or otherwise,
    "eq": lambda one, other: one == other,
    "int64": int,
    "nindent": _nindent,
    "not": lambda value: not value,
    "quote": lambda value: json.dumps(_shown(value)),
    "required": _required,
    "toYaml": _to_yaml,
}

"""Write docs/reference/cli.md from the commands themselves.

The page is made from the commands, so it can be wrong only where they are; a test fails when
it is not up to date. `queen serve` has a page of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

from queen.cli.exits import MEANINGS
from queen.cli.main import app
from queen.cli.server_options import SHARED

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"

_HEAD = """# The command line

Made from the commands by `make reference`; do not edit. [Work from the command
line](../howto/command-line.md) shows them at work; [queen serve](serve.md) has its own page.

Commands that talk to a server take `--url`, `--token` and `--json`. They print tables on a
terminal and NDJSON on a pipe; standard output holds data only, the rest goes to standard error.

| exit code | meaning |
| --- | --- |
"""
_SHARED = set(SHARED)
_ELSEWHERE = {"serve"}


def render() -> str:
    codes = "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items())
    root: Any = typer.main.get_command(app)
    shared = [one for one in root.commands["pop"].params if one.name in _SHARED]
    commands = "".join(f"\n{part}\n" for part in _commands(root, "queen"))
    return f"{_HEAD}{codes}\n{_table(shared)}\n{commands}"


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        elif name not in _ELSEWHERE:
            yield _section(command, f"{path} {name}")


def _section(command: Any, path: str) -> str:
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    usage = " ".join([path, *(_metavar(one) for one in arguments)])
    parts = [f"## {path}", f"`{usage}`", (command.help or "").strip()]
    own = [one for one in command.params if one.name not in _SHARED]
    if own:
        parts.append(_table(own))
    return "\n\n".join(parts)


def _metavar(argument: TyperArgument) -> str:
    return argument.metavar or (argument.name or "").upper()


def _table(params: list[Any]) -> str:
    rows = ["| option | variable | default | what it is |", "| --- | --- | --- | --- |"]
    return "\n".join([*rows, *map(_row, params)])


def _row(param: Any) -> str:
    if isinstance(param, TyperOption):
        names = [param.envvar] if isinstance(param.envvar, str) else param.envvar or []
        name = ", ".join(f"`{one}`" for one in [*param.opts, *param.secondary_opts])
    else:
        name, names = f"`{_metavar(param)}`", []
    required = param.required and isinstance(param, TyperOption)
    default = "" if param.default in (None, "", [], False) or required else f"`{param.default}`"
    variables = ", ".join(f"`{one}`" for one in names)
    return f"| {name} | {variables} | {'required' if required else default} | {param.help or ''} |"


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()

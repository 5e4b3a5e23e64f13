"""Write docs/reference/serve.md from the options of `queen serve`.

The page is made from the command, so it can be wrong only where the command is; a test fails
when it is not up to date.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperOption

from queen.cli.main import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "serve.md"

_HEAD = """# queen serve

Made from the command by `make reference`; do not edit. JWT has
[variables of its own](../howto/secure-a-server.md). A database can also be named by `PG_HOST`,
`PG_PORT`, `PG_USER`, `PG_PASSWORD`, `PG_DB`, `PG_USE_SSL` and `PG_SSL_REJECT_UNAUTHORIZED`, as for
the original broker.

| option | variable | default | what it is |
| --- | --- | --- | --- |
"""


def render() -> str:
    return _HEAD + "".join(f"{row}\n" for row in _rows())


def _rows() -> Iterator[str]:
    group = typer.main.get_command(app)
    command = group.commands["serve"]  # type: ignore[attr-defined]
    for option in command.params:
        if isinstance(option, TyperOption):
            names = option.envvar or []
            variables = ", ".join(
                f"`{one}`" for one in ([names] if isinstance(names, str) else names)
            )
            default = "" if option.default in (None, "", [], False) else f"`{option.default}`"
            yield f"| `{option.opts[0]}` | {variables} | {default} | {option.help} |"


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()

"""How the command line reads the options of `queen serve`.

A supervisor starts a server again that has ended. So a variable that cannot be used ends it with
the code after which nobody tries again; what is typed wrong is wrong usage, as everywhere.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperCommand

from queen.cli.exits import CONFIG, fail


class ServeCommand(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            option: Any = error.param
            if option is None:
                raise
            source = ctx.get_parameter_source(option.name)
            if source is not None and source.name == "ENVIRONMENT":
                fail(CONFIG, f"{_variable_of(option)} cannot be used: {error.message}")
            # Typer's own hint lists the variables as well, though none of them was used.
            error.param_hint = f"'{option.opts[0]}'"
            raise


def _variable_of(option: Any) -> str:
    """Return the variable that an option was read from, and its value: the first that has one."""
    names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)
    name = next(name for name in names if os.environ.get(name))
    # Only numbers, switches and choices can be wrong here, so it is no secret.
    return f"{name}={os.environ[name][:100]}"

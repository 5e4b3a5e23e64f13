"""What a server was told, option by option, and by what; secrets are left out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from queen.wire.admin.system import Setting

_SECRETS = {"encryption_key"}
# Options without a switch: by the environment alone.
_VARIABLES = re.compile(r"^(JWT_|QUEEN_SPOOL_|FILE_BUFFER_|PG_)")
_SECRET_VARIABLES = re.compile(r"PASSWORD|SECRET|PRIVATE")
_HIDDEN = "set"
# In a URL `user:password@`, and as a parameter or in the other form of a DSN `password=…`.
_PASSWORD_IN_URL = re.compile(r"(://[^/@:]*):[^@]*@")
_PASSWORD_SAID = re.compile(r"(password\s*=\s*)('(?:[^']|'')*'|[^\s&]+)", re.IGNORECASE)
_ORIGINS = {"COMMANDLINE": "command", "ENVIRONMENT": "environment"}


def told(context: typer.Context) -> tuple[Setting, ...]:
    """Return the options of the command that runs, and what only the environment says."""
    options = [
        _of_option(context, option)
        for option in context.command.params
        if option.param_type_name == "option" and not option.is_eager
    ]
    settings = [*options, *_of_environment(os.environ)]
    return tuple(sorted(settings, key=lambda setting: setting.name))


def _of_option(context: typer.Context, option: Any) -> Setting:
    name = option.name or ""
    value = context.params.get(name)
    is_secret = name in _SECRETS
    source = context.get_parameter_source(name)
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return Setting(
        name=name.replace("_", "-"),
        value=_hidden(value) if is_secret else _shown(value),
        origin="default" if source is None else _ORIGINS.get(source.name, "default"),
        variable=variables[0] if variables else None,
        about=option.help or "",
        secret=is_secret,
    )


def _of_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name, value in environment.items():
        if _VARIABLES.match(name):
            is_secret = bool(_SECRET_VARIABLES.search(name))
            shown = _hidden(value) if is_secret else _shown(value)
            yield Setting(name, shown, "environment", name, secret=is_secret)


def _hidden(value: object) -> str:
    return _HIDDEN if value else ""


def _shown(value: object) -> str:
    """Return a value as text, without a password that is part of it.

    >>> _shown("postgresql://me:secret@db/queen?password=again")
    'postgresql://me:…@db/queen?password=…'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return _PASSWORD_SAID.sub(r"\1…", _PASSWORD_IN_URL.sub(r"\1:…@", text))[:1000]

"""What every command that talks to a server understands beside its own options.

They are added to each command that has `--url`: written out in every signature, they would hide
what the command is about.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from queen.cli.complete import context_names
from queen.cli.contexts import Asked, note_asked
from queen.cli.exits import note_command
from queen.cli.options import LogLevel

ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        autocompletion=context_names,
        help="The server of this context: `queen context list`.",
    ),
]
CaCert = Annotated[
    str | None,
    typer.Option(
        "--cacert",
        envvar="QUEEN_CACERT",
        help="Trust the certificates in this file (PEM) and no others.",
    ),
]
Level = Annotated[
    LogLevel,
    typer.Option("--log-level", help="How much the client says of what it does."),
]
_ADDED = {
    "context_name": (ContextName, None),
    "cacert": (CaCert, None),
    "log_level": (Level, LogLevel.WARNING),
}
SHARED = ("url", "token", "as_json", *_ADDED)


def use_everywhere(app: typer.Typer) -> None:
    """Give the options to all commands of an application that talk to a server."""
    for command in app.registered_commands:
        if command.callback is not None and "url" in inspect.signature(command.callback).parameters:
            command.callback = _with_options(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            use_everywhere(group.typer_instance)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that has the options too, and notes what they say before it runs."""
    if inspect.signature(command).parameters.keys() & _ADDED.keys():
        return command

    @functools.wraps(command)
    def run(current: typer.Context, **given: Any) -> Any:
        note_command(current.command_path)
        sources = {name: current.get_parameter_source(name) for name in ("url", "token")}
        typed = frozenset(
            name
            for name, source in sources.items()
            if source is not None and source.name == "COMMANDLINE"
        )
        note_asked(
            Asked(given.pop("context_name"), given.pop("cacert"), given.pop("log_level"), typed)
        )
        return command(**given)

    own = inspect.signature(command, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter(name, keyword, default=default, annotation=kind)
        for name, (kind, default) in _ADDED.items()
    ]
    first = inspect.Parameter("current", keyword, annotation=typer.Context)
    params = [first, *(param.replace(kind=keyword) for param in own.parameters.values()), *added]
    described: Any = run
    # Typer reads both, and follows neither to the function that is wrapped.
    described.__signature__ = own.replace(parameters=params)
    described.__annotations__ = {param.name: param.annotation for param in params}
    return run

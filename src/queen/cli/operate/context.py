"""`queen context`: servers by name, kept for one user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from queen.cli import options as cli
from queen.cli.complete import context_names
from queen.cli.contexts import (
    ContextEntry,
    contexts_path,
    find_context,
    read_contexts,
    write_contexts,
)
from queen.cli.exits import USAGE, fail, say
from queen.cli.output import Output
from queen.cli.tables import Column

context = typer.Typer(help="Name servers, and say which one is meant.", no_args_is_help=True)

_COLUMNS = (
    Column("context", "name"),
    Column("in use", "inUse"),
    Column("servers", "url"),
    Column("token", "hasToken"),
    Column("certificates", "cacert"),
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=context_names, help="A name of your own.")
]
# Not read from the environment: what is stored is what was written here.
Url = Annotated[
    str, typer.Option("--url", help="The server, or several of a broker separated by commas.")
]
TokenText = Annotated[
    str | None,
    typer.Option("--token", help="The token to show it; - reads it from standard input."),
]
CaCert = Annotated[
    Path | None, typer.Option("--cacert", help="Trust the certificates in it (PEM).")
]
Use = Annotated[bool, typer.Option("--use", help="Use it from now on.")]


@context.command()
def add(
    name: Name,
    url: Url,
    token: TokenText = None,
    cacert: CaCert = None,
    use: Use = False,
) -> None:
    """Keep a server under a name, or replace it. The first one is used from now on."""
    from queen.client import Queen

    if not name.isprintable() or not name.strip():
        fail(USAGE, f"{name!r} is no name: use letters that can be printed")
    try:
        Queen(url.split(","))
    except ValueError as error:
        fail(USAGE, str(error))
    if cacert is not None and not cacert.is_file():
        fail(USAGE, f"there is no file {cacert}")
    if token == "-":  # noqa: S105 (a word for standard input)
        token = typer.get_text_stream("stdin").readline().strip()
    stored = read_contexts()
    path = None if cacert is None else str(cacert.resolve())
    stored.contexts[name] = ContextEntry(url=url, token=token, cacert=path)
    if use or stored.current is None:
        stored.current = name
    write_contexts(stored)
    say(f"{name} is {url}, kept in {contexts_path()}")


@context.command()
def use(name: Name) -> None:
    """Talk to the server of this context from now on."""
    find_context(name)
    stored = read_contexts()
    stored.current = name
    write_contexts(stored)
    say(f"commands talk to {stored.contexts[name].url} from now on")
    if os.environ.get("QUEEN_URL"):
        say("but QUEEN_URL is set, and goes before it")


@context.command("list")
def list_contexts(as_json: cli.Json = False) -> None:
    """Show the contexts, without their tokens."""
    stored = read_contexts()
    rows = [
        {
            "name": name,
            "inUse": name == (os.environ.get("QUEEN_CONTEXT") or stored.current),
            "url": entry.url,
            "hasToken": entry.token is not None,
            "cacert": entry.cacert,
        }
        for name, entry in sorted(stored.contexts.items())
    ]
    Output(as_json).rows(rows, _COLUMNS)


@context.command()
def remove(name: Name) -> None:
    """Forget a context."""
    find_context(name)
    stored = read_contexts()
    del stored.contexts[name]
    if stored.current == name:
        stored.current = None
    write_contexts(stored)
    say(f"{name} is forgotten")

"""`queen maintenance`: hold pushes or pops back, on all servers of a broker."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from queen.cli import options as cli
from queen.cli.connection import with_queen
from queen.cli.output import Output
from queen.client import Queen

maintenance = typer.Typer(help="Hold pushes or pops back for a while.", no_args_is_help=True)

Pops = Annotated[bool, typer.Option("--pop", help="Pops, in place of pushes.")]


@maintenance.command()
def show(url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False) -> None:
    """Say whether pushes or pops are held back."""
    state = with_queen(url, token, lambda queen: queen.admin.maintenance())
    Output(as_json).record(
        {
            "pushesHeld": state["maintenanceMode"],
            "popsHeld": state["popMaintenanceMode"],
            "spooled": state["bufferedMessages"],
        }
    )


@maintenance.command()
def on(
    pop: Pops = False, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Hold pushes back: they wait in the spool. With --pop consumers get nothing."""
    _turn(True, pop, url, token, as_json)


@maintenance.command()
def off(
    pop: Pops = False, url: cli.Url = None, token: cli.Token = None, as_json: cli.Json = False
) -> None:
    """Let them through again; what waited goes first."""
    _turn(False, pop, url, token, as_json)


def _turn(enabled: bool, pop: bool, url: str | None, token: str | None, as_json: bool) -> None:
    async def work(queen: Queen) -> Any:
        turn = queen.admin.pop_maintenance if pop else queen.admin.maintenance
        return await turn(enabled)

    Output(as_json).record(with_queen(url, token, work))

"""How a command ends: exit codes that scripts can rely on, and one line that says why."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import typer

from queen import errors

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
UNREACHABLE = 5
# EX_CONFIG of sysexits.h: the configuration forbids to start.
CONFIG = 78

MEANINGS = {
    0: "fine",
    FAILED: "some of it failed",
    USAGE: "wrong usage",
    NOT_FOUND: "not found",
    NOT_ALLOWED: "not allowed",
    UNREACHABLE: "the server cannot be reached",
    CONFIG: "the configuration forbids to start (serve)",
}

EPILOG = "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + "."


def say(text: str) -> None:
    """Tell the user; standard output is for data only."""
    typer.echo(text, err=True)


def fail(code: int, text: str) -> NoReturn:
    """End with a line that says why and what to do next."""
    say(f"queen: {text}")
    raise typer.Exit(code)


def confirm(yes: bool, question: str) -> None:
    """Let a person think again; a script says --yes."""
    if yes:
        return
    typer.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        fail(FAILED, "nothing was done: answer y, or give --yes")


@contextmanager
def explain_errors(urls: Sequence[str] = ()) -> Iterator[None]:
    """Turn what a server or its absence says into one line and an exit code."""
    try:
        yield
    except BrokenPipeError:
        # Whoever reads our output has seen enough. Without this, Python complains when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None
    except errors.QueenError as error:
        fail(*code_and_reason(error, urls))


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Let Ctrl-C, or SIGTERM, be the ordinary end of something that has no other."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with suppress(KeyboardInterrupt):
        yield


def code_and_reason(error: errors.QueenError, urls: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of an error, and what to say."""
    match error:
        case errors.Unreachable():
            code, hint = UNREACHABLE, ": start one with `queen serve`, or name another with --url"
            return code, f"no server answers at {', '.join(urls)}{hint} ({error.message})"
        case errors.Unauthenticated():
            code, hint = NOT_ALLOWED, "give a good token with --token or QUEEN_TOKEN"
        case errors.Forbidden():
            code, hint = NOT_ALLOWED, "use a token that may do this"
        case errors.NotFound() | errors.ItemNotFound():
            code, hint = NOT_FOUND, "`queen queue list` (group, stream) shows what there is"
        case errors.StreamDiffers():
            code, hint = FAILED, "on the command line that is --recut"
        case errors.BadRequest():
            code, hint = USAGE, "`queen COMMAND --help` shows how it is used"
        case errors.Conflict():
            # It says itself what there is to do.
            return FAILED, error.message
        case errors.PipelineFailed():
            code, hint = FAILED, "started again, it goes on from its checkpoint"
        case _ if error.retryable:
            code, hint = FAILED, "run it again a little later"
        case _:
            code, hint = FAILED, "the server's log says more"
    return code, f"{error.message}: {hint}"

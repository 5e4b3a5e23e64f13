"""How a command ends: exit codes that scripts can rely on, and one line that says why."""

from __future__ import annotations

import os
import signal
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import NoReturn

import typer

from queen import errors
from queen.cli.tables import terminal_size, wrap
from queen.cli.terminal.group_names import with_shown_names
from queen.cli.terminal.printable import printable

FAILED = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
UNREACHABLE = 5
# EX_CONFIG of sysexits.h: the configuration forbids to start.
CONFIG = 78
# What shells say of a program that SIGINT has ended.
INTERRUPTED = 130

MEANINGS = {
    0: "fine",
    FAILED: "some of it failed",
    USAGE: "wrong usage",
    NOT_FOUND: "not found",
    NOT_ALLOWED: "not allowed",
    UNREACHABLE: "the server cannot be reached",
    CONFIG: "the configuration forbids to start (serve)",
    INTERRUPTED: "interrupted by Ctrl-C",
}

EPILOG = "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + "."


# How a server begins to say that something is not there, and the command that lists its kind.
_LISTED = {
    "Queue ": "queue",
    "Stream ": "stream",
    # Of a queue; one of a stream is said without its name.
    "Consumer group '": "group",
    "Pipeline ": "pipeline",
    "Token ": "token",
    "Dead letter ": "dlq",
    "nothing is scheduled": "schedule",
    "Schedule ": "schedule",
}

_command: ContextVar[str] = ContextVar("command", default="queen")


def note_command(path: str) -> None:
    """Remember which command runs, such as `queen queue list`, for what is said about it."""
    _command.set(path)


def say(text: str) -> None:
    """Tell the user; standard output is for data only."""
    for line in _for_people(text):
        typer.echo(line, err=True)


def _for_people(text: str) -> list[str]:
    """Return what is said, on a terminal broken between words and unable to do anything there."""
    text = with_shown_names(text)
    if not sys.stderr.isatty():
        return [text]
    width, _ = terminal_size()
    return wrap(printable(text), width, fold=False)


def fail(code: int, text: str) -> NoReturn:
    """End with a line that says why and what to do next."""
    say(f"queen: {text}")
    raise typer.Exit(code)


def confirm(yes: bool, question: str) -> None:
    """Let a person think again; a script says --yes."""
    if yes:
        return
    *lines, last = _for_people(f"{question} [y/N]")
    for line in lines:
        typer.echo(line, err=True)
    typer.echo(f"{last} ", err=True, nl=False)
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


def _unreachable(error: errors.Unreachable, urls: str) -> str:
    """Say why nobody answers: a certificate that is not good is no server that is away."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "name the file of those you trust with --cacert or QUEEN_CACERT"
        return f"the certificate of {urls} is not good: {cause.verify_message}; {hint}"
    if isinstance(cause, ssl.SSLError):
        return f"no TLS with {urls}: {cause.reason}; does it speak TLS at all, or is it http://?"
    hint = "start one with `queen serve`, or name another with --url"
    return f"no server answers at {urls}: {hint} ({error.message})"


def code_and_reason(error: errors.QueenError, urls: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of an error, and what to say."""
    match error:
        case errors.Unreachable():
            return UNREACHABLE, _unreachable(error, ", ".join(urls))
        case errors.Unauthenticated():
            code, hint = NOT_ALLOWED, "give a good token with --token or QUEEN_TOKEN"
        case errors.Forbidden():
            code, hint = NOT_ALLOWED, "use a token that may do this"
        case errors.NotFound() | errors.ItemNotFound():
            code, hint = NOT_FOUND, _where_to_look(error.message)
        case errors.StreamDiffers():
            code, hint = FAILED, "on the command line that is --recut"
        case errors.BadRequest():
            code, hint = USAGE, f"`{_command.get()} --help` shows how it is used"
        case errors.MissingExtra():
            return USAGE, error.message
        case errors.Conflict() | errors.EncryptionUnavailable():
            # It says itself what there is to do.
            return FAILED, error.message
        case errors.PipelineFailed():
            code, hint = FAILED, "started again, it goes on from its checkpoint"
        case _ if error.retryable:
            code, hint = FAILED, "run it again a little later"
        case _:
            code, hint = FAILED, "the server's log says more"
    said = error.message.removesuffix(".")
    return code, f"{said}: {hint}" if hint else said


def _where_to_look(message: str) -> str:
    """Return which command shows what there is of a kind, if there is one."""
    for beginning, noun in _LISTED.items():
        if message.startswith(beginning):
            return f"`queen {noun} list` shows what there is"
    return ""

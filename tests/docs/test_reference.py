"""The pages of the reference say what the server does."""

from __future__ import annotations

from tools import cli_reference, serve_reference
from tools.reference import PAGE, render, served

from tests.conftest import ServerProcess


def test_the_reference_of_the_api_is_up_to_date(server: ServerProcess) -> None:
    assert PAGE.read_text() == render(served(server.url)), "run `make reference`"


def test_the_reference_of_the_command_is_up_to_date() -> None:
    assert serve_reference.PAGE.read_text() == serve_reference.render(), "run `make reference`"


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.render(), "run `make reference`"

"""The pages of the reference say what the server does."""

from __future__ import annotations

import inspect

import pytest
from tools import (
    cli_reference,
    client_reference,
    error_reference,
    module_map,
    serve_reference,
    stream_broker_reference,
)
from tools.reference import PAGE, render, served

from queen.server.api.failures import STATUS
from queen.streambroker import Capability, StreamBroker, SyncStreamBroker
from tests.conftest import ServerProcess


def test_the_reference_of_the_api_is_up_to_date(server: ServerProcess) -> None:
    assert PAGE.read_text() == render(served(server.url)), "run `make reference`"


def test_the_reference_of_the_command_is_up_to_date() -> None:
    assert serve_reference.PAGE.read_text() == serve_reference.render(), "run `make reference`"


def test_the_reference_of_the_command_line_is_up_to_date() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.render(), "run `make reference`"


def test_the_reference_of_the_client_is_up_to_date() -> None:
    assert client_reference.PAGE.read_text() == client_reference.render(), "run `make reference`"


def test_the_reference_of_stream_brokers_is_up_to_date() -> None:
    page = stream_broker_reference.PAGE.read_text()
    assert page == stream_broker_reference.render(), "run `make reference`"


def test_the_reference_of_stream_brokers_has_every_field() -> None:
    page = stream_broker_reference.PAGE.read_text()
    for kind in stream_broker_reference.RECORDS:
        section = page.partition(f"## {kind.__name__}\n")[2].partition("\n## ")[0]
        assert all(f"| `{name}` |" in section for name in kind.__struct_fields__), kind  # type: ignore[attr-defined]
    assert all(f"| `{capability.name}` |" in page for capability in Capability)


def test_the_reference_of_the_errors_is_up_to_date_and_has_all_of_them() -> None:
    page = error_reference.PAGE.read_text()
    assert page == error_reference.render(), "run `make reference`"
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == len(STATUS) - 1, "the base class is listed as nobody's own"


def test_the_map_of_the_modules_is_up_to_date() -> None:
    assert module_map.PAGE.read_text() == module_map.render(), "run `make reference`"


@pytest.mark.parametrize("kind", [*client_reference.CLASSES, StreamBroker, SyncStreamBroker])
def test_everything_public_of_the_client_says_what_it_does(kind: type) -> None:
    assert inspect.getdoc(kind)
    for name, member in client_reference.members(kind):
        assert inspect.getdoc(member), f"{kind.__name__}.{name}"

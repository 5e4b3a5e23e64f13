"""Every program in `examples/` runs against a real server and prints what happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ServerProcess

FOLDER = Path(__file__).parents[2] / "examples"

# The lines without which an example has not shown what it is for.
SHOWN = {
    "00_chat": [
        "anna was told: Hello! What can I do? I am here. My pleasure.",
        "bruno was told: Hello! What can I do? I am here. My pleasure.",
    ],
    "01_basic_usage": [
        "order-2 is queued, sent again it is a duplicate",
        "customer-7 at offset 0: {'order': 1, 'total': 12}",
        "customer-7 at offset 3: None",
        "customer-7 at offset 4: {'data': 'no envelope'}",
        "nothing is left",
    ],
    "02_batch_operations": [
        "pushed 2000 messages with one call",
        "handled 2000 messages in 4 batches",
        "one by one they add up to 1999000",
    ],
    "03_transactional_pipeline": [
        "handled 2, failed 1 and tried again",
        "invoices: [{'invoice for': 1}, {'invoice for': 2}]",
        "parcels: [{'parcel for': 1}, {'parcel for': 2}]",
    ],
    "04_delayed_processing": [
        "asked at once: []",
        "not at once, but after ",
        "they are scheduled",
        "reminded: in a second",
        "reminded: at a time",
        "still scheduled: []",
    ],
    "05_window_buffer": ["saved 'queen' once", "5 changes in one batch"],
    "06_queue_configuration": [
        "lease 60 s, 5 retries",
        "refused: queue_full, room for 0",
        "dedup forever: queued then duplicate",
        "after its ttl: []",
        "refused: option 'leaseTime' must be between",
    ],
    "07_namespace_and_task": [
        "everything of the shop: report for the shop\neverything of the shop: mail for the shop",
        "mail of the bank: mail for the bank",
        "both namespaces are listed: True",
    ],
    "08_consumer_groups": [
        "fan-out: {'billing': 30, 'search': 30}",
        "scaling: 30 messages, each once, in order: True",
        "billing has 1 message to read",
    ],
    "09_client_side_buffering": [
        "the last one is buffered",
        "user-2 has 400 clicks, in order: True",
        "1200 clicks, none lost",
        "sent by the time limit: last",
    ],
    "10_buffering_performance": [
        "lists of 100",
        "buffered is quicker than one by one: True",
    ],
    "11_events": [
        "alerts, before anything new: []",
        "mail: anna has paid",
        "alerts: bruno has registered",
        "from a replay: {'anna': 'paid', 'bruno': 'registered'}",
    ],
    "12_dead_letter_monitoring": [
        "6 attempts failed",
        "dead: {'amount': -1} ValueError: a negative amount",
        "2 times ConnectionError: the bank is closed",
        "sent back: 2\npaid 12\npaid 30\nforgotten: 1",
    ],
    "13_logging": [
        "WARNING queen.client: cannot connect to http://127.0.0.1:1",
        "the program sees Unreachable",
        "WARNING queen.client: a handler failed: RuntimeError",
        "handled 1, failed 1",
    ],
    "14_request_and_reply": ["1 + 2 + 3 = 6", "20 + 22 = 42"],
    "15_maintenance": [
        "an impatient push is refused: maintenance",
        "a patient push waits: True",
        "after maintenance it is queued",
        "pops get nothing: []",
        "and then: delivered late",
        "maintenance is on: False",
    ],
}


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_shows_what_it_says(name: str, server: ServerProcess) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")],
        env={**os.environ, "QUEEN_URL": server.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    for line in SHOWN[name]:
        assert line in ended.stdout, ended.stdout
    assert "secret" not in ended.stdout + ended.stderr


def test_every_example_is_run_and_listed() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == set(SHOWN)
    listed = (FOLDER / "README.md").read_text()
    assert all(f"| [{name}.py]({name}.py) |" in listed for name in names)

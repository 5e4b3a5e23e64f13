"""Every program in `examples/` runs against a real server and prints what happened.

Those of streams wait for windows to close and do nothing meanwhile, so they wait together.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.ports import free_port

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
        "a push is buffered\na scheduled message is refused: maintenance\nconsumers find []",
        "pops get nothing: []",
        "and then: delivered late",
        "maintenance is on: False",
    ],
    "48_tasks": [
        "the same job: True, it existed: True",
        "2 jobs were done",
        "cat is 200 wide now",
        "the other one failed: ValueError: dog has no width",
        "report of January, attempt 1",
        "February is scheduled, taken back: True",
    ],
    "49_cron": [
        "created, and due at 0",
        "and 2 more that were asked for",
        "it is paused",
        "it is active",
        "29 March at 03:00 CEST, the next after 23.5 hours",
        "25 October at 02:30 CEST, the next after 25 hours",
    ],
    "36_qos0_events": [
        "answered: {'buffered'}",
        "300 events, in order: True",
        "stored in fewer transactions than events: True",
        "patient: buffered\nbehind it: buffered\nin order: ['look', 'pay']",
        "with nothing before it: queued",
    ],
    "37_groups_and_auto_ack": [
        "dashboard: ['login', 'look', 'pay', 'logout']",
        "analytics: ['login', 'look', 'pay', 'logout']",
        "billing, with a failure between: ['login', 'look', 'pay', 'logout']",
        "left for the dashboard: []",
    ],
    "38_postgresql_failover": [
        "PostgreSQL is killed\npushes that were answered: 300",
        "some were buffered: True",
        "300 orders, in order: True\nleft in the spool: 0",
    ],
    "39_cost_of_a_push": ["durable, lists of 100", "QoS 0", "all of them are stored"],
}

SHOWN_OF_STREAMS = {
    "16_first_stream": ["5 logins and 10 views, none missing, none twice", "failed: 0"],
    "17_global_and_partitioned": [
        "global:\n__GLOBAL__: 4 texts, 1 reactions\npartitioned:\n",
        "chat-1: 2 texts, 1 reactions",
        "chat-2: 2 texts, 0 reactions",
    ],
    "18_stream_groups": [
        "groups: {'analytics': 40, 'archive': 40}",
        "workers: 4 and 4 windows",
        "each customer once: True",
    ],
    "19_kinds_of_windows": [
        "tumbling: [[0, 1, 2, 3, 4, 5]], the last over 1 s",
        "sliding: [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]], the last over 2 s",
        "session: [[0, 1, 2, 3, 4, 5]], the last over 0.5 s",
        "count: [[0, 1, 2], [3, 4, 5]]",
    ],
    "20_metrics_per_window": [
        "100 requests, 50.5 ms on average",
        "95 % within 95 ms, all within 100 ms",
        "error rate 5%, whole window again: 100",
        "6 views by 4 users",
        "top pages [('/', 3), ('/cart', 2)], 2.5 s on average",
    ],
    "21_stream_join": [
        "anna: 4 clicks, 2 purchases, 34.50\n  conversion 50%\n  not bought: ['cup', 'tray']",
        "bruno: 2 clicks, 0 purchases, 0.00\n  conversion 0%\n  not bought: ['tea', 'cup']",
    ],
    "22_order_lifecycle": [
        "order-1 is complete",
        "order-2 waits for its shipment",
        "order-3 is not paid",
        "reminded: ['order-3']",
    ],
    "23_sessions": ["anna saw / /orders\nanna saw / /tea /cart\nbruno saw /\n"],
    "24_windows_into_a_queue": [
        "attempt 1: computed\nattempt 2: computed\n1 failed, 1 handled",
        "results: [{'avg': 21.0, 'max': 24, 'count': 3}]",
    ],
    "25_stages": ["clicks by country: {'FR': 10, 'IT': 20}"],
    "26_late_data": [
        "measured, each in its own second: [20, 21]",
        "too late, and kept: [22]",
    ],
    "27_fraud_detection": ["looked at 3 users\nbruno: amount\ncarla: places and count\n"],
    "28_etl": [
        "first consumer: loaded True",
        "second consumer, attempt 2: loaded False",
        "rows in the warehouse: 100",
    ],
    "29_chat_rooms": [
        "room-42: 2 messages, 1 reactions, 1 edits\n  by user: {'anna': 2, 'bruno': 2}",
        "room-43: 1 messages, 0 reactions, 0 edits",
    ],
    "30_chat_translation": [
        "chat-1: 4 originals, 4 translations\nchat-2: 4 originals, 4 translations\n"
        "chat-3: 4 originals, 4 translations",
    ],
    "31_devices": [
        "device-001: temperature 72 to 75, 73.5 on average of 4; pressure 14.5 to 15.0,"
        " 14.75 on average of 2",
        "critical: {'device': 'device-002', 'temperature': 94}",
    ],
    "32_ack_by_hand": [
        "after a nack: attempt 2 of the same 3 messages",
        "too late to ack: it is attempt 3 of somebody else",
        "renewed, so in time: settled True",
        "kept alive for longer than its lease: lost False",
    ],
    "33_seek_a_stream": [
        "first run: [10, 20, 30]",
        "from the beginning: [10, 20, 30]\nthe same windows: True",
        "from a time: [20, 30]",
        "from now on: None",
    ],
    "34_failing_windows": [
        "booked 10 for anna",
        "booked 30 for carla",
        "set aside: not a number in ['??']",
        "dead: bruno after 2 attempts, ConnectionError: the bank is closed",
        "sent back: 1\nbooked 20 for bruno\nstill dead: []",
    ],
    "35_watching_streams": [
        "before anything was pushed: nothing was written to the sources yet",
        "window of b failed: once",
        "3 windows, 30 messages, 1 errors",
        "key d is leased, held by slow-worker",
        "workers: 4 windows consumed\nwaiting 0, dead 0, paused False",
        "done: [('a', 10), ('b', 10), ('c', 10), ('d', 1)]",
    ],
}
# How many of them run at once.
_TOGETHER = 10

# These run in memory and on a server alike.
SHOWN_OF_STREAM_BROKERS = {
    "40_first_worker": [
        "worker-2: hello, delivery 2",
        "worker-2: taken over, delivery 2",
        "worker-2: no such job: fly, delivery 1\nworker-2: no such job: fly, delivery 2",
        "dead after 2 deliveries: {'type': 'fly'}",
        "pending 0, not delivered yet 0",
    ],
    "41_fire_and_forget": [
        "3 entries\n{'type': 'email', 'to': 'anna@example.com', 'subject': 'Welcome!'}",
        "['report', 2026, {'pages': [1, 2]}]",
        "removed 2, left 1",
    ],
    "42_share_the_work": [
        "worker-1 got [1, 2]\nworker-2 got [3]",
        "worker-1 has 2 pending\nworker-2 has 1 pending",
        "acked 3, still pending []",
    ],
    "43_claim_what_is_stale": [
        "processor-2 takes over report, delivery 2",
        "processor-2 takes over backup, delivery 2",
        "it had 0 pending",
    ],
    "44_wait_for_entries": [
        "told of {'event': 'login'}",
        "long before its time was over: True",
        "nothing came: []",
    ],
    "45_several_streams": [
        "emails, senders: ['anna', 'bruno']\nemails, statistics: ['anna', 'bruno']",
        "sms, senders: ['carla']",
        "auditors, moved back: 2\nstreams: ['emails', 'sms']",
    ],
    "46_email_service": [
        "delivery 3 failed: nobody answers at bruno@nowhere",
        "sent to ['anna@example.com']\nset aside: bruno@nowhere",
    ],
}
SHOWN_OF_REDIS_CLIENTS = {
    "47_redis_worker": [
        "Hello, Anna!\nworker-1: the worker dies\ndone at attempt 2, told [1, 2]",
        "worker-2 made 1 calls\nleft: 0",
    ],
}


def run(name: str, server: ServerProcess) -> subprocess.CompletedProcess[str]:
    return run_with(name, QUEEN_URL=server.url)


def run_with(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check(ended: subprocess.CompletedProcess[str], shown: list[str]) -> None:
    assert ended.returncode == 0, ended.stderr
    for line in shown:
        assert line in ended.stdout, ended.stdout
    assert "secret" not in ended.stdout + ended.stderr


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_an_example_shows_what_it_says(name: str, server: ServerProcess) -> None:
    check(run(name, server), SHOWN[name])


@pytest.fixture(scope="module")
def redis_url(dsn: str) -> Iterator[str]:
    """The URL of a server's port for clients of Redis."""
    port = free_port()
    running = ServerProcess("--database-url", dsn, "--resp-port", str(port))
    yield f"redis://127.0.0.1:{port}"
    assert running.stop() == 0


@pytest.fixture(params=["memory", "redis", "queen"])
def streams_url(request: pytest.FixtureRequest) -> str:
    """The URL of each kind of stream broker that needs nothing but this project."""
    if request.param == "memory":
        return "memory://"
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"queen://127.0.0.1:{request.getfixturevalue('server').port}"


@pytest.mark.parametrize("name", sorted(SHOWN_OF_STREAM_BROKERS))
def test_an_example_of_stream_brokers_runs_on_each_of_them(name: str, streams_url: str) -> None:
    check(run_with(name, STREAMS_URL=streams_url), SHOWN_OF_STREAM_BROKERS[name])


@pytest.mark.parametrize("name", ["40_first_worker", "46_email_service"])
def test_an_example_of_stream_brokers_runs_without_a_server(name: str, dsn: str) -> None:
    # Other tests have queues in this database that are encrypted.
    ended = run_with(name, STREAMS_URL=dsn, QUEEN_ENCRYPTION_KEY=ENCRYPTION_KEY)
    check(ended, SHOWN_OF_STREAM_BROKERS[name])


@pytest.mark.parametrize("name", sorted(SHOWN_OF_REDIS_CLIENTS))
@pytest.mark.parametrize("options", ["", "?protocol=2"])
def test_a_program_for_redis_runs_unchanged(name: str, redis_url: str, options: str) -> None:
    check(run_with(name, REDIS_URL=redis_url + options), SHOWN_OF_REDIS_CLIENTS[name])


@pytest.fixture(scope="module")
def ended_of_streams(
    server: ServerProcess, request: pytest.FixtureRequest
) -> dict[str, subprocess.CompletedProcess[str]]:
    """What became of the examples of streams whose tests are to run."""
    tests = " ".join(item.name for item in request.session.items)
    wanted = [name for name in SHOWN_OF_STREAMS if f"[{name}]" in tests]
    with ThreadPoolExecutor(_TOGETHER) as pool:
        return dict(zip(wanted, pool.map(lambda name: run(name, server), wanted), strict=True))


@pytest.mark.parametrize("name", sorted(SHOWN_OF_STREAMS))
def test_an_example_of_streams_shows_what_it_says(
    name: str, ended_of_streams: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    check(ended_of_streams[name], SHOWN_OF_STREAMS[name])


def test_every_example_is_run_and_listed() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")}
    of_entries = SHOWN_OF_STREAM_BROKERS.keys() | SHOWN_OF_REDIS_CLIENTS.keys()
    assert names == SHOWN.keys() | SHOWN_OF_STREAMS.keys() | of_entries
    listed = (FOLDER / "README.md").read_text()
    assert all(f"| [{name}.py]({name}.py) |" in listed for name in names)

"""Workers of one server: one writes and leases for all, and any of them can take that over."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from queen.core.frame import encode_frame
from tests.api import Answer, Api, Poll, ack_of, pop_path
from tests.conftest import ServerProcess
from tests.contract.leasedcalls import ack_spans, messages_of, pop_frames, span_of
from tests.integration.test_workers import workers_of
from tests.spooling.outages import FickleDatabase
from tests.waiting import spend, until

Start = Callable[..., ServerProcess]


def role_of(api: Api) -> str:
    role: str = api.call("GET", "/health").json["worker_role"]
    return role


def connect(running: ServerProcess, role: str) -> Api:
    """Return a connection to a worker that is a front, or the home."""

    connected: list[Api] = []

    def look() -> bool:
        api = running.api()
        with suppress(OSError, HTTPException):
            if role_of(api) == role:
                connected.append(api)
                return True
        api.close()
        return False

    until(look)
    return connected[0]


def process_of(running: ServerProcess, api: Api) -> psutil.Process:
    """The process behind a connection, as long as none was replaced."""
    workers = sorted(workers_of(running), key=psutil.Process.create_time)
    return workers[api.call("GET", "/health").json["worker_id"]]


@pytest.fixture(scope="module")
def server(dsn: str) -> Iterator[ServerProcess]:
    """One server of three workers."""
    running = ServerProcess("--database-url", dsn, "--workers", "3")
    yield running
    assert running.stop() == 0


@pytest.fixture
def front(server: ServerProcess) -> Iterator[Api]:
    api = connect(server, "front")
    yield api
    api.close()


@pytest.fixture
def home(server: ServerProcess) -> Iterator[Api]:
    api = connect(server, "home")
    yield api
    api.close()


def test_a_server_alone_says_so(dsn: str, start_server: Start) -> None:
    assert role_of(start_server("--database-url", dsn).api()) == "alone"


@pytest.mark.parametrize("count", [1, 10, 100])
def test_what_one_pushes_another_pops_and_a_third_acks(
    front: Api, home: Api, queue: str, count: int
) -> None:
    pushed = front.push_many(queue, count)
    (read,) = [home.messages(queue, batch=1000, consumerGroup="g")]
    assert [message["transactionId"] for message in read] == pushed
    assert [message["data"]["n"] for message in read] == list(range(count))
    answer = front.ack_batch(read, group="g").json
    assert [result["success"] for result in answer["results"]] == [True] * count
    assert front.pop(queue, consumerGroup="g").status == 204
    home.push_many(queue, count)
    again = front.messages(queue, batch=1000, consumerGroup="g")
    assert len(again) == count
    assert home.ack(again[0]).json["success"]


def test_answers_of_a_front_are_those_of_the_home(front: Api, home: Api, queue: str) -> None:
    """The same requests on two queues, but for what must differ."""

    def steps(api: Api, name: str) -> list[Any]:
        same = uuid.uuid4().hex
        items = [
            {"queue": name, "transactionId": f"{same}-{n}", "payload": {"n": n}} for n in (1, 2, 1)
        ]
        traced = {"queue": name, "payload": 1, "traceId": str(uuid.uuid4()), "partition": "t"}
        answers = [api.push(*items), api.push(*items), api.push(traced)]
        answers.append(api.push(items[0], {"queue": "", "payload": 1}))
        assert api.configure(name, maxSize=1).status == 201
        answers.append(api.push({"queue": name, "payload": "too much"}))
        read = api.pop(name, "Default", batch=10, consumerGroup="g")
        first, *rest = read.messages
        answers += [read, api.ack(first, "failed", error="why"), api.ack(first, "completed")]
        answers += [api.ack_batch([*rest, {**first, "partitionId": "none"}], group="g")]
        answers += [api.ack({**first, "leaseId": str(uuid.uuid4())}), api.pop(name, wait="false")]
        return [(answer.status, _shape(answer)) for answer in answers]

    assert steps(front, f"{queue}-front") == steps(home, f"{queue}-home")


def test_frames_and_spans_of_a_front_are_those_of_the_home(
    front: Api, home: Api, queue: str
) -> None:
    def steps(api: Api, name: str) -> list[Any]:
        assert api.configure(name, leaseTime=60, retryLimit=0).status == 201
        pushed = api.push_many(name, 30)
        popped = pop_frames(api, name, batch=10, consumerGroup="g")
        messages = messages_of(popped)
        assert [message["transactionId"] for message in messages] == pushed[:10]
        partly = {**span_of(messages[:4]), **span_of(messages[4:5], "dlq")}
        whole = span_of(messages[5:])
        lapsed = {**whole, "leaseId": str(uuid.uuid4())}
        beyond = {**whole, "done": [[20, 25]]}
        answers = [ack_spans(api, span, group="g") for span in (lapsed, beyond, partly, whole)]
        answers.append(ack_spans(api, whole, group="g"))
        answers.append(pop_frames(api, name, batch=5, consumerGroup="auto", autoAck="true"))
        rest = messages_of(pop_frames(api, name, batch=50, consumerGroup="g"))
        assert [message["transactionId"] for message in rest] == pushed[10:]
        answers.append(ack_spans(api, span_of(rest), group="g"))
        spoken = [answer.json if answer.raw[:1] == b"{" else {} for answer in answers]
        return [(answer.status, said) for answer, said in zip(answers, spoken, strict=True)]

    through_front = steps(front, f"{queue}-front")
    assert through_front == steps(home, f"{queue}-home")
    # One was dead, none was lost, and what was repeated was answered as before.
    lost = [answer["spans"][0]["lost"] for _, answer in through_front if answer]
    assert lost == [5, 5, 0, 0, 0, 0]
    assert through_front[2][1]["spans"][0]["dead"] == 1


def _shape(answer: Answer) -> Any:
    """An answer without the names, ids and times in it."""

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: shape(each) for name, each in sorted(value.items())}
        if isinstance(value, list):
            return [shape(each) for each in value]
        if isinstance(value, str):
            return "text" if len(value) > 16 else value
        return "number" if isinstance(value, int) and value > 1_000_000 else value

    return shape(answer.json)


def test_a_poll_at_one_front_is_woken_by_a_push_at_another(
    server: ServerProcess, front: Api, home: Api, queue: str
) -> None:
    front.configure(queue)
    path = pop_path(queue, wait="true", timeout=30_000, consumerGroup="g")
    polls = [Poll(api, path) for api in (front, home, connect(server, "front"))]
    for n in range(3):
        front.push({"queue": queue, "partition": f"p{n}", "payload": n})
    assert sorted(poll.data()[0] for poll in polls) == [0, 1, 2]


def test_auto_ack_frames_and_transactions_at_a_front(front: Api, home: Api, queue: str) -> None:
    ids = [f"{queue}-{n}" for n in range(40)]
    assert front.push_frames(encode_frame(queue, "p", ids, [b"%d" % n for n in range(40)])).json[
        0
    ] | {"partitionId": ""} == {
        "queue": queue,
        "partition": "p",
        "partitionId": "",
        "status": "queued",
        "count": 40,
        "baseOffset": 0,
    }
    assert front.data(queue, batch=10, autoAck="true") == list(range(10))
    read = front.messages(queue, batch=10)
    out = {"type": "push", "items": [{"queue": f"{queue}-out", "payload": "done"}]}
    assert front.transaction(*[ack_of(message) for message in read], out).json["success"]
    assert home.data(f"{queue}-out") == ["done"]
    assert home.data(queue, batch=10) == list(range(20, 30))


def test_a_shared_group_at_fronts_is_that_of_the_home(front: Api, home: Api, queue: str) -> None:
    front.configure(queue, retryDelay=0)
    front.push_many(queue, 3)
    shared = {"consumerGroup": "workers", "shared": "true"}
    held = [api.messages(queue, "Default", **shared) for api in (front, home, front)]
    assert [one["data"]["n"] for messages in held for one in messages] == [0, 1, 2]
    assert front.ack(held[1][0]).status == 200
    assert front.ack(held[2][0], "failed").status == 200
    again = until(lambda: home.messages(queue, "Default", **shared))
    assert [(one["data"]["n"], one["retryCount"]) for one in again] == [(2, 1)]
    # An ack in a transaction is a front's own work.
    assert front.transaction(ack_of(again[0], "failed")).status == 200
    again = until(lambda: front.messages(queue, "Default", **shared))
    assert [(one["data"]["n"], one["retryCount"]) for one in again] == [(2, 2)]
    assert front.extend(held[0][0]["leaseId"], {"seconds": 100}).status == 200
    front.push_many(queue, 3)
    group = f"/api/v1/consumer-groups/workers/queues/{queue}"
    assert front.call("POST", f"{group}/order").status == 200
    assert front.messages(queue, "Default", consumerGroup="workers") == []
    for message in (held[0][0], again[0]):
        assert home.ack(message).status == 200
    rest = front.messages(queue, "Default", consumerGroup="workers", batch=9)
    assert [one["data"]["n"] for one in rest] == [0, 1, 2]
    assert home.messages(queue, "Default", consumerGroup="workers") == []


def test_order_within_a_partition_holds_over_connections(
    server: ServerProcess, front: Api, home: Api, queue: str
) -> None:
    apis = [front, home, connect(server, "front")]
    for n in range(30):
        assert apis[n % 3].push({"queue": queue, "payload": n}).status == 201
    assert front.data(queue, batch=100) == list(range(30))


def test_a_client_that_hangs_up_at_a_front_gets_nothing(front: Api, home: Api, queue: str) -> None:
    front.configure(queue, leaseTime=300)

    def parked() -> bool:
        return b"\nqueen_parked_polls 1.0\n" in home.call("GET", "/metrics/prometheus").raw

    poll = Poll(front, pop_path(queue, wait="true", timeout=60_000))
    until(parked)
    poll.hang_up()
    until(lambda: not parked())
    front.push({"queue": queue, "payload": 1})
    (message,) = home.messages(queue)
    assert message["retryCount"] == 0


def test_what_is_changed_at_a_front_holds_for_its_next_request(front: Api, queue: str) -> None:
    for n in range(20):
        front.configure(queue, leaseTime=100 + n)
        front.push({"queue": queue, "partition": f"p{n}", "payload": n})
        claim = front.pop(queue, f"p{n}").json["claims"][0]
        assert claim["leaseMs"] == (100 + n) * 1000
        assert front.delete_queue(queue).json["existed"]
        assert front.pop(queue, f"p{n}").status == 204


class Load:
    """Producers and consumers that go on whatever happens to their server."""

    def __init__(self, running: ServerProcess, queue: str) -> None:
        self._running = running
        self._queue = queue
        self.pushed: dict[str, int] = {}
        self.acked: set[str] = set()
        self.broken: list[str] = []
        self._stop = threading.Event()
        self._producers = [threading.Thread(target=self._produce, args=(n,)) for n in range(4)]
        self._consumers = [threading.Thread(target=self._consume) for _ in range(4)]
        for thread in self._producers + self._consumers:
            thread.start()

    def end(self) -> None:
        """End the producers, then the consumers when all is acked."""
        self._stop.set()
        for thread in self._producers + self._consumers:
            thread.join()

    def _ask(self, ask: Callable[[Api], Answer]) -> Answer:
        """Send a request until it is answered, over another connection each time."""
        while True:
            api = self._running.api()
            try:
                answer = ask(api)
                if answer.status < 500:
                    return answer
            except (OSError, HTTPException):
                spend(0.01)
            finally:
                api.close()

    def _produce(self, number: int) -> None:
        n = 0
        while not self._stop.is_set():
            name = f"{number}-{n}"
            item = {
                "queue": self._queue,
                "partition": f"p{number}",
                "transactionId": name,
                "payload": n,
            }
            assert self._ask(lambda api, item=item: api.push(item)).status == 201  # type: ignore[misc]
            self.pushed[name] = n
            n += 1

    def _consume(self) -> None:
        query: dict[str, Any] = {"batch": 10, "consumerGroup": "g", "wait": "true", "timeout": 200}
        while not (self._stop.is_set() and self.acked >= self.pushed.keys()):
            for message in self._ask(lambda api: api.pop(self._queue, **query)).messages:
                name = message["transactionId"]
                if name in self.acked:
                    self.broken.append(f"{name} came again after its ack")
                answer = self._ask(lambda api, message=message: api.ack(message))  # type: ignore[misc]
                if answer.status == 200:
                    self.acked.add(name)


def test_a_home_that_is_killed_is_taken_over_and_nothing_is_lost(
    dsn: str, start_server: Start, queue: str
) -> None:
    running = start_server("--database-url", dsn, "--workers", "3")
    home = connect(running, "home")
    home.configure(queue, leaseTime=2)
    process = process_of(running, home)
    load = Load(running, queue)
    until(lambda: len(load.acked) > 50)
    process.kill()
    after = len(load.acked)
    connect(running, "home")
    until(lambda: len(load.acked) > after + 50)
    connect(running, "front")
    load.end()
    assert load.broken == []
    api = running.api()
    for number in range(4):
        stored = api.data(queue, f"p{number}", batch=10_000, consumerGroup="all")
        assert stored == list(range(len(stored)))
        assert len(stored) == sum(name.startswith(f"{number}-") for name in load.pushed)
    assert running.stop() == 0


def test_a_home_that_does_nothing_is_left_alone(dsn: str, start_server: Start, queue: str) -> None:
    running = start_server("--database-url", dsn, "--workers", "2")
    front, home = connect(running, "front"), connect(running, "home")
    front.push({"queue": queue, "payload": 0})
    process = process_of(running, home)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        answer = front.push({"queue": queue, "payload": 1, "transactionId": "a"})
        assert (answer.status, answer.json["code"]) == (503, "outcome_unknown")
        assert front.push({"queue": queue, "payload": 1, "transactionId": "a"}).status == 201
        assert front.data(queue, batch=2, autoAck="true") == [0, 1]
    finally:
        os.kill(process.pid, signal.SIGCONT)
    until(lambda: role_of(front) == "front")
    assert front.push({"queue": queue, "payload": 2}).status == 201
    assert home.data(queue, batch=5) == [2]
    assert running.stop() == 0


def test_what_waits_while_postgresql_is_away_keeps_its_order_over_connections(
    start_server: Start, tmp_path: Path, queue: str
) -> None:
    fickle = FickleDatabase(tmp_path / "pg")
    try:
        options = ("--database-url", fickle.dsn, "--spool-dir", str(tmp_path), "--workers", "2")
        running = start_server(*options)
        apis = [connect(running, "front"), connect(running, "home")]
        assert apis[0].push({"queue": queue, "payload": 0}).status == 201
        fickle.kill()
        statuses: list[int] = []
        # Processes of PostgreSQL go on for a moment.
        while statuses.count(202) < 10:
            n = len(statuses) + 1
            statuses.append(apis[n % 2].push({"queue": queue, "payload": n}).status)
        assert statuses == sorted(statuses)
        fickle.start_again()
        read: list[int] = []

        def all_read() -> bool:
            answer = apis[0].pop(queue, batch=100, autoAck="true")
            # PostgreSQL may need a moment more.
            if answer.status == 200:
                read.extend(message["data"] for message in answer.messages)
            return len(read) > len(statuses)

        until(all_read)
        assert read == list(range(len(statuses) + 1))
        assert running.stop() == 0
    finally:
        fickle.stop()

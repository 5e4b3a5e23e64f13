"""Requests made from the API document, good and bad, against a real server.

Schemathesis generates them from the document as it is served. Every answer must be one that
the document describes, and none may be a failure of the server. The requests of all
operations are mixed, and most of them speak of the same few queues, groups, leases and
messages, so that a pop finds what a push has stored and an ack what a pop has leased.

The same seed makes the same requests, apart from ids that the server gave out:

    QUEEN_TEST_SEED=7 QUEEN_TEST_FUZZ=20000 pytest tests/contract/test_openapi_fuzz.py
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from queen.core.frame import CONTENT_TYPE, encode_frame
from tests.api import Answer, Api
from tests.conftest import ServerProcess
from tests.documented import Documented
from tests.long import IS_LONG
from tests.waiting import until

REQUESTS = int(os.environ.get("QUEEN_TEST_FUZZ", "5000" if IS_LONG else "400"))
# So many of a hundred operations may never have been answered with success.
_UNSEEN_PERCENT = 15 if REQUESTS >= 5000 else 25 if REQUESTS >= 2000 else 75
SEED = int(os.environ.get("QUEEN_TEST_SEED", "20260102"))
_LONGEST_WAIT_MS = 20
_NEGATIVE_PERCENT = 35
_FAMILIAR_PERCENT = 80
_REFILL_EVERY = 20
# From here on many operations must have succeeded at least once.
_ENOUGH = 300

load_all_checks()


@schemathesis.serializer(CONTENT_TYPE)
def _frames(_context: object, value: object) -> bytes:
    """A frame is generated as bytes that are none, or as one that is good."""
    made = value if isinstance(value, bytes) else str(value).encode()
    return made if len(made) % 2 else encode_frame("orders", "Default", [made.hex()], [b"1"])


_CHECKS: Any = CHECKS.get_by_names(
    ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)


class Familiar:
    """Names that requests keep coming back to, and what the server has given out lately."""

    def __init__(self) -> None:
        self._pools: dict[str, deque[str]] = {
            "queue": deque(("orders", "invoices", "a/b %ü")),
            "partition": deque(("Default", "p1")),
            "group": deque(("billing", "audit")),
            "stream": deque(("clicks",)),
            "query": deque(("report",)),
            "namespace": deque(("shop", "")),
            "task": deque(("pay", "")),
            "transactionId": deque(("t1", "t2"), maxlen=30),
            "partitionId": deque(maxlen=10),
            "leaseId": deque(maxlen=10),
            "id": deque(maxlen=10),
        }
        aliases = (("consumerGroup", "group"), ("lease", "leaseId"), ("streamName", "stream"))
        for alias, name in aliases:
            self._pools[alias] = self._pools[name]

        # Messages under lease, with all that an ack of them has to name.
        self._leased: deque[dict[str, Any]] = deque(maxlen=20)

    def learn(self, node: Any) -> None:
        """Remember the ids in an answer."""
        if isinstance(node, list):
            for one in node:
                self.learn(one)
        elif isinstance(node, dict):
            if isinstance(node.get("leaseId"), str) and "retryCount" in node:
                self._leased.append(node)
            for name, value in node.items():
                pool = self._pools.get(name)
                if pool is not None and pool.maxlen and isinstance(value, str) and value:
                    pool.append(value)
                else:
                    self.learn(value)

    def put_into(self, node: Any, draw: Callable[[int], int]) -> None:
        """Replace most of the names in a request by familiar ones; `draw(n)` is below n."""
        if isinstance(node, list):
            for one in node:
                self.put_into(one, draw)
        elif isinstance(node, dict):
            if "partitionId" in node and self._leased and draw(100) < _FAMILIAR_PERCENT:
                message = self._leased[draw(len(self._leased))]
                for name in ("transactionId", "partitionId", "leaseId", "consumerGroup"):
                    node[name] = message[name]
                return
            for name, value in node.items():
                pool = self._pools.get(name)
                if pool and isinstance(value, str | None) and draw(100) < _FAMILIAR_PERCENT:
                    node[name] = pool[draw(len(pool))]
                else:
                    self.put_into(value, draw)


def _cases(document: dict[str, Any]) -> st.SearchStrategy[Case[Any]]:
    """Return requests to any operation, most of them good."""
    schema = schemathesis.openapi.from_dict(document)
    operations = [one.ok() for one in schema.get_all_operations() if isinstance(one, Ok)]
    assert len(operations) == sum(map(len, document["paths"].values()))
    good = [one.as_strategy(GenerationMode.POSITIVE) for one in operations]
    bad = [
        one.as_strategy(GenerationMode.NEGATIVE)
        for one in operations
        if one.path_parameters or one.query or one.body
    ]
    percent = st.integers(0, 99)
    return percent.flatmap(lambda n: st.one_of(bad if n < _NEGATIVE_PERCENT else good))


def _put_into_path(case: Case[Any], familiar: Familiar, draw: Callable[[int], int]) -> None:
    """What stands in a path is encoded when it is generated, not when it is sent."""
    named = dict(case.path_parameters or {})
    familiar.put_into(named, draw)
    for name, value in named.items():
        if value != case.path_parameters[name]:
            case.path_parameters[name] = quote(value, safe="")


def _is_stored(api: Api, item: dict[str, Any]) -> bool:
    return api.push(item).status == 201


def _refill(api: Api, familiar: Familiar) -> None:
    """Put the familiar queues in order again, with messages in them and under lease."""
    for path in ("/api/v1/system/maintenance", "/api/v1/system/maintenance/pop"):
        assert api.call("POST", path, {"enabled": False}).status == 200
    api.call("POST", "/api/v1/consumer-groups/billing/resume")
    for queue in ("orders", "invoices"):
        api.configure(queue, leaseTime=60)
        for partition in ("Default", "p1"):
            # Behind what may wait in the spool, which is stored then.
            until(partial(_is_stored, api, {"queue": queue, "partition": partition}))
            api.push_many(queue, 3, partition)
        familiar.learn(api.pop(queue, "Default", batch=2, consumerGroup="billing").json)
        for message in api.messages(queue, "p1", consumerGroup="audit"):
            api.ack(message, "dlq")
    familiar.learn(api.call("GET", "/api/v1/dlq?limit=8").json)
    stream = {"name": "clicks", "source_queue_names": ["orders"], "window_duration_ms": 50}
    api.call("POST", "/api/v1/stream/define", {**stream, "window_grace_period_ms": 0})


def _shorten_wait(query: Any) -> None:
    """Let a long poll end soon; a timeout that is wrong stays wrong."""
    if not isinstance(query, dict):
        return
    if str(query.get("block", "")).isdigit():
        query["block"] = min(int(query["block"]), _LONGEST_WAIT_MS)
    if not (query.get("wait") or "streamName" in query):
        return
    timeout = str(query.get("timeout", ""))
    if not timeout or (timeout.isdigit() and int(timeout) > _LONGEST_WAIT_MS):
        query["timeout"] = _LONGEST_WAIT_MS


@pytest.mark.slow
@pytest.mark.timeout(900 + REQUESTS // 5)
def test_every_answer_is_one_the_document_describes(own_server: ServerProcess) -> None:
    api = own_server.api()
    document = api.call("GET", "/api/v1/openapi.json").json
    judge, familiar = Documented(document), Familiar()
    seen: Counter[str] = Counter()
    session = requests.Session()
    number = st.integers(0, 2**16)

    @seed(SEED)
    @settings(
        max_examples=REQUESTS,
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(case=_cases(document), data=st.data())
    def ask(case: Case[Any], data: st.DataObject) -> None:
        def draw(below: int) -> int:
            return data.draw(number) % below

        for part in (case.query, case.body):
            familiar.put_into(part, draw)
        # Most of what exists is spared: else there is soon nothing to ask for.
        if case.method != "DELETE" or draw(10) == 0:
            _put_into_path(case, familiar, draw)
        for part in (case.query, case.body):
            _shorten_wait(part)
        if seen.total() % _REFILL_EVERY == 0:
            _refill(api, familiar)
        response = case.call(base_url=own_server.url, session=session, timeout=20)
        _judge(case, response, judge)
        seen[f"{case.method} {case.path} {response.status_code}"] += 1
        if response.headers.get("content-type") == ["application/json"] and response.content:
            familiar.learn(json.loads(response.content))

    try:
        ask()
    finally:
        session.close()
        print(f"seed {SEED}, {seen.total()} requests")
        for line in sorted(seen):
            print(f"{seen[line]:6} {line}")
    _was_worth_it(seen, judge)


def _judge(case: Case[Any], response: Any, judge: Documented) -> None:
    status = response.status_code
    assert status < 500 or status == 503, f"{status}: {case.as_curl_command()}"
    case.validate_response(response, checks=_CHECKS)
    headers = {name.lower(): values[0] for name, values in response.headers.items()}
    path = urlsplit(response.request.url).path
    try:
        judge.check(case.method, path, Answer(status, response.content, headers))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{case.as_curl_command()}") from error


def _was_worth_it(seen: Counter[str], judge: Documented) -> None:
    """The requests must have met something: else the test has tested only refusals."""
    if seen.total() < _ENOUGH:
        return
    operations = list(judge.operations())
    missed = []
    for method, path, operation in operations:
        good = [status for status in operation["responses"] if status < "400"]
        if not any(seen[f"{method} {path} {status}"] for status in good):
            missed.append(f"{method} {path}")
    # Some come at the end of a conversation that chance does not often lead.
    assert len(missed) <= len(operations) * _UNSEEN_PERCENT // 100, missed

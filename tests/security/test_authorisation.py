"""What those who are let in may do, and what they may know."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from queen.core.cipher import parse_keys
from queen.core.frame import encode_frame
from queen.server.api.app import App
from queen.server.api.routing import Route
from queen.server.auth.access import Role
from queen.service.broker import Broker, Limits
from queen.service.stats.activity import ServerName
from queen.storage.database import Database
from tests.api import Answer, ack_of, push_of
from tests.contract.rawhttp import RawConnection, request
from tests.contract.sinkcalls import Sink, frame
from tests.security.client import Client, Guarded
from tests.security.conftest import As
from tests.security.issuer import signed
from tests.waiting import until

_ROLES = {"read-only": Role.READ, "read-write": Role.WRITE, "admin": Role.ADMIN}


async def all_routes(dsn: str) -> list[Route]:
    database = await Database.connect(dsn, size=1)
    name = ServerName(port=0, worker=0)
    found = App(Broker(dsn, database, Limits(), parse_keys(""), name)).routes
    await database.close()
    return found


def path_of(route: Route) -> str:
    """Return a path that reaches a route and names nothing that exists."""
    return re.sub(r"\{[^}]*\}", lambda _: f"none-{uuid.uuid4().hex[:8]}", route.path)


async def test_every_route_asks_for_its_role(guarded: Guarded, as_: As) -> None:
    routes = await all_routes(guarded.dsn)
    assert len(routes) > 10
    callers = {role: as_(role) for role in ("read-only", "read-write")}
    stranger = as_(None)
    for route in routes:
        where = f"{route.method} {route.path}"
        assert isinstance(route.role, Role), where
        if route.role is Role.OPEN:
            assert stranger.call(route.method, path_of(route)).status not in (401, 403), where
            continue
        assert stranger.call(route.method, path_of(route)).status == 401, where
        for role, client in callers.items():
            answer = client.call(
                route.method, path_of(route), b"" if route.method != "GET" else None
            )
            assert (answer.status == 403) is (_ROLES[role] < route.role), (where, role, answer)


async def test_only_what_must_be_is_open(guarded: Guarded) -> None:
    for route in await all_routes(guarded.dsn):
        if route.role is Role.OPEN:
            is_document = route.path == "/api/v1/openapi.json"
            closed = route.path.startswith(("/api/v1/", "/metrics"))
            assert is_document or not closed, route.path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/push"),
        ("GET", "/api/v1/pop/queue/q"),
        ("GET", "/api/v1/pop"),
        ("POST", "/api/v1/ack"),
        ("POST", "/api/v1/ack/batch"),
        ("POST", "/api/v1/ack/spans"),
        ("POST", "/api/v1/transaction"),
        ("POST", "/streams/v1/cycle"),
        ("POST", "/api/v1/configure"),
        ("DELETE", "/api/v1/resources/queues/q"),
    ],
)
def test_a_reader_changes_nothing(as_: As, method: str, path: str) -> None:
    answer = as_("read-only").call(method, path, b"{}")
    assert (answer.status, answer.json["error"]) == (403, "Insufficient permissions")


def test_a_token_without_a_role_may_do_nothing(guarded: Guarded) -> None:
    for role in (None, "root", "Admin", ["admin"]):
        with Client(guarded.url, signed(role=role)) as client:
            assert client.call("GET", "/api/v1/fetch/queue/q").status == 403


async def test_a_route_that_does_not_look_is_closed_to_the_limited(
    guarded: Guarded, as_: As
) -> None:
    """Deny by default: a new route is out of reach until it says that it looks."""
    limited = as_("admin", "mine")
    for route in await all_routes(guarded.dsn):
        if route.role is not Role.OPEN and not route.scoped:
            answer = limited.call(route.method, path_of(route), b"")
            assert answer.status == 404, route.path


# ---- two tenants ----


class Tenants:
    """Ours and theirs, and a queue of theirs with a leased message in it."""

    def __init__(self, as_: As) -> None:
        tag = uuid.uuid4().hex[:8]
        self.mine_name, self.their_name = f"mine{tag}", f"their{tag}"
        self.mine = as_("admin", self.mine_name)
        self.theirs = as_("admin", self.their_name)
        self.queue = f"{self.their_name}.orders"
        self.theirs.push_many(self.queue, 2)
        (self.message,) = self.theirs.messages(self.queue, consumerGroup="g")

    def nobody(self) -> str:
        """A queue that does not exist and would not be ours."""
        return f"{self.their_name}.none"


@pytest.fixture
def tenants(as_: As) -> Tenants:
    return Tenants(as_)


def same(one: Answer, other: Answer, *names: str) -> None:
    """Check that two answers differ by the names in them at most."""
    texts = [answer.raw.decode() for answer in (one, other)]
    for name in names:
        texts = [text.replace(name, "NAME") for text in texts]
    assert (one.status, texts[0]) == (other.status, texts[1])


def test_pop_knows_no_queue_of_others(tenants: Tenants) -> None:
    for path in ("/api/v1/pop/queue/{}", "/api/v1/pop/queue/{}/partition/Default"):
        there = tenants.mine.call("GET", path.format(tenants.queue))
        assert there.status == 404
        nowhere = tenants.mine.call("GET", path.format(tenants.nobody()))
        same(there, nowhere, tenants.queue, tenants.nobody())
    assert tenants.mine.pop(f"{tenants.mine_name}.none").status == 204


def test_a_poll_does_not_wait_for_a_queue_of_others(tenants: Tenants) -> None:
    answer = tenants.mine.pop(tenants.nobody(), wait="true", timeout=5000)
    assert answer.status == 404


def test_a_queue_that_comes_up_in_another_namespace_is_not_served(
    tenants: Tenants, admin: Client
) -> None:
    name = f"{tenants.mine_name}.moved"
    tenants.mine.send("GET", f"/api/v1/pop/queue/{name}?wait=true&timeout=5000")
    admin.call("POST", "/api/v1/configure", {"queue": name, "namespace": tenants.their_name})
    tenants.theirs.push({"queue": name, "payload": 1})
    assert tenants.mine.receive().status == 404


def test_pop_by_label_serves_own_queues_only(tenants: Tenants) -> None:
    for query in ("", f"?namespace={tenants.their_name}", "?task=orders"):
        answer = tenants.mine.call("GET", f"/api/v1/pop{query}")
        assert answer.status == 204
    tenants.mine.push({"queue": f"{tenants.mine_name}.orders", "payload": "own"})
    (message,) = tenants.mine.call("GET", "/api/v1/pop?task=orders&consumerGroup=n").messages
    assert message["data"] == "own"


def test_a_poll_by_label_does_not_adopt_queues_of_others(tenants: Tenants) -> None:
    tenants.mine.send("GET", "/api/v1/pop?task=fresh&wait=true&timeout=4000&consumerGroup=g")
    tenants.theirs.push({"queue": f"{tenants.their_name}.fresh", "payload": "theirs"})
    assert not tenants.mine.is_answered(2.5)
    tenants.theirs.push({"queue": f"{tenants.mine_name}.fresh", "payload": "refused"})
    twin = tenants.mine.twin()
    twin.push({"queue": f"{tenants.mine_name}.fresh", "payload": "own"})
    twin.close()
    (message,) = tenants.mine.receive().messages
    assert message["data"] == "own"


def test_push_refuses_items_for_others_one_by_one(tenants: Tenants) -> None:
    own = f"{tenants.mine_name}.q"
    for theirs in (tenants.queue, tenants.nobody()):
        answer = tenants.mine.push(
            {"queue": own, "payload": 1},
            {"queue": theirs, "payload": 2},
            {"queue": own, "payload": 3},
        )
        assert (answer.status, answer.json["code"]) == (404, "item_not_found")
        assert [one["index"] for one in answer.json["items"]] == [1]
        assert [one["index"] for one in answer.json["results"]] == [0, 2]
    assert tenants.theirs.data(tenants.queue, batch=10, consumerGroup="n") == [{"n": 0}, {"n": 1}]
    assert tenants.theirs.pop(tenants.nobody()).status == 204


def test_frames_for_others_are_refused_as_a_whole(tenants: Tenants) -> None:
    own = f"{tenants.mine_name}.frames"
    frames = [encode_frame(name, "p", ["a"], [b"1"]) for name in (own, tenants.queue)]
    assert tenants.mine.push_frames(b"".join(frames)).status == 404
    assert tenants.mine.pop(own).status == 204
    assert tenants.mine.push_frames(frames[0]).status == 201


@pytest.mark.parametrize("status", ["completed", "failed", "dlq"])
def test_a_stolen_lease_opens_nothing(tenants: Tenants, status: str) -> None:
    message = tenants.message
    unknown = {**message, "partitionId": "00000000-0000-8000-bfff-ffffffffffff"}
    answer = tenants.mine.ack(message, status)
    assert answer.status == 404
    same(answer, tenants.mine.ack(unknown, status))
    span = {**{key: message[key] for key in ("partitionId", "leaseId")}, "done": [[0, 1]]}
    spans = tenants.mine.call("POST", "/api/v1/ack/spans", {"consumerGroup": "g", "spans": [span]})
    assert spans.json["spans"][0]["error"] == "Message not found: no such partition"
    batch = tenants.mine.ack_batch([message], status, "g").json["results"]
    assert batch[0]["success"] is False
    assert tenants.mine.extend(message["leaseId"]).status == 404
    same(tenants.mine.extend(message["leaseId"]), tenants.mine.extend(str(uuid.uuid4())))
    assert tenants.theirs.extend(message["leaseId"]).status == 200
    assert tenants.theirs.ack(message).status == 200


def test_a_transaction_touches_nothing_of_others(tenants: Tenants) -> None:
    own = push_of({"queue": f"{tenants.mine_name}.t", "payload": 1})
    theirs = push_of({"queue": tenants.queue, "payload": 1})
    assert tenants.mine.transaction(own, theirs).status == 404
    assert tenants.mine.transaction(own, ack_of(tenants.message)).status == 404
    assert tenants.mine.transaction(own, leases=[tenants.message["leaseId"]]).status == 404
    assert tenants.mine.pop(f"{tenants.mine_name}.t").status == 204
    assert tenants.mine.transaction(own).status == 200


def test_a_streaming_query_touches_nothing_of_others(tenants: Tenants) -> None:
    mine, theirs, message = tenants.mine, tenants.theirs, tenants.message
    own = f"{tenants.mine_name}.source"
    query = {"name": "q", "source_queue": own, "config_hash": "h"}
    for more in ({"source_queue": tenants.queue}, {"sink_queue": tenants.queue}):
        assert mine.call("POST", "/streams/v1/queries", {**query, **more}).status == 404
    known = {**query, "source_queue": tenants.queue}
    their_id = theirs.call("POST", "/streams/v1/queries", known).json["query_id"]
    my_id = mine.call("POST", "/streams/v1/queries", query).json["query_id"]
    assert my_id != their_id
    ack = {"transactionId": message["transactionId"], "leaseId": message["leaseId"]}
    stolen: dict[str, Any] = {
        "partition_id": message["partitionId"],
        "consumer_group": "g",
        "state_ops": [{"type": "upsert", "key": "k", "value": 1}],
        "ack": ack,
    }
    for query_id in (my_id, their_id):
        for path in ("cycle", "state/get"):
            body = {**stolen, "query_id": query_id}
            answer = mine.call("POST", f"/streams/v1/{path}", body).json
            assert (answer["success"], answer["error"]) == (False, "Partition not found")
    mine.push_many(own, 1)
    (held,) = mine.messages(own, consumerGroup="streams.q")
    lost = mine.call(
        "POST",
        "/streams/v1/cycle",
        {
            "query_id": my_id,
            "partition_id": held["partitionId"],
            "push_items": [{"queue": tenants.queue, "payload": 1}],
            "ack": {"transactionId": held["transactionId"], "leaseId": held["leaseId"]},
        },
    ).json
    assert lost["success"] is False
    assert "not found" in lost["error"]
    done = theirs.call("POST", "/streams/v1/cycle", {**stolen, "query_id": their_id})
    assert done.json["success"] is True


def test_fetch_configure_and_delete_know_no_queue_of_others(tenants: Tenants) -> None:
    mine = tenants.mine
    for name in (tenants.queue, tenants.nobody()):
        assert mine.fetch(name).status == 404
        assert mine.fetch(name, "Default").status == 404
        assert mine.configure(name, leaseTime=1).status == 404
        assert mine.delete_queue(name).status == 404
    moved = {"queue": f"{tenants.mine_name}.q", "namespace": tenants.their_name}
    assert mine.call("POST", "/api/v1/configure", moved).status == 404
    assert tenants.theirs.fetch(tenants.queue).status == 200


def test_a_queue_that_the_limited_configure_is_theirs(tenants: Tenants) -> None:
    name = f"{tenants.mine_name}.made"
    made = tenants.mine.configure(name, leaseTime=5)
    assert (made.status, made.json["namespace"]) == (201, tenants.mine_name)
    assert tenants.mine.fetch(name).status == 200
    assert tenants.theirs.fetch(name).status == 404
    assert tenants.mine.delete_queue(name).status == 200


def test_a_pipeline_of_others_is_neither_taken_nor_told_of(tenants: Tenants) -> None:
    def define(client: Client, namespace: str, **more: Any) -> Answer:
        definition = {
            "name": name,
            "namespace": namespace,
            "reads": [{"name": "orders", "queues": [f"{namespace}.in"]}],
            "select": {"secret": f"'of {namespace}'"},
            "output": {"queue": f"{namespace}.out"},
        }
        return client.call("POST", "/api/v1/pipelines", {"definition": definition, **more})

    name = f"p-{uuid.uuid4().hex[:12]}"
    assert define(tenants.theirs, tenants.their_name).status == 201
    before = tenants.theirs.call("GET", f"/api/v1/pipelines/{name}").json
    for more in ({}, {"replace": True}):
        refused = define(tenants.mine, tenants.mine_name, **more)
        assert refused.status == 409
        assert set(refused.json) == {"error", "code", "retryable"}
        assert "taken" in refused.json["error"]
        assert tenants.their_name.encode() not in refused.raw
    assert tenants.mine.call("GET", f"/api/v1/pipelines/{name}").status == 404
    assert tenants.theirs.call("GET", f"/api/v1/pipelines/{name}").json == before


def test_a_jwt_may_be_limited_too(guarded: Guarded, tenants: Tenants) -> None:
    with Client(guarded.url, signed(namespaces=[tenants.their_name])) as client:
        assert client.fetch(tenants.queue).status == 200
    with Client(guarded.url, signed(namespaces=[])) as client:
        assert client.fetch(tenants.queue).status == 404


class Secrets(Tenants):
    """Theirs has used everything there is: groups, traces, dead letters."""

    def __init__(self, as_: As) -> None:
        super().__init__(as_)
        self.group = f"grp{uuid.uuid4().hex[:8]}"
        self.trace = f"trc{uuid.uuid4().hex[:8]}"
        self.canary = f"cnr{uuid.uuid4().hex[:8]}"
        self.theirs.push({"queue": self.queue, "payload": self.canary})
        for one in self.theirs.messages(self.queue, batch=10, consumerGroup=self.group):
            self.theirs.ack(one, "dlq", error=self.canary, consumerGroup=self.group)
            event = {
                "transactionId": one["transactionId"],
                "partitionId": one["partitionId"],
                "traceNames": [self.trace],
                "data": {"text": self.canary},
            }
            assert self.theirs.call("POST", "/api/v1/traces", event).status == 201

    def leaks(self, answer: Answer, named: str = "") -> list[str]:
        """Return what an answer tells that the request did not say itself."""
        text = answer.raw.decode(errors="replace")
        secrets = (self.their_name, self.group, self.trace, self.canary)
        return [one for one in secrets if one in text and one not in named]

    def path(self, route: Route) -> str:
        """Return the path of a route with what a stranger would put into it."""
        by_id = "/partitions/" not in route.path and "/queue/" not in route.path
        guesses = {
            "queue": self.queue,
            # With the verbs of Redis, a queue is a stream.
            "stream": self.queue if route.path.startswith("/stream/") else "1",
            "group": self.group,
            "partition": self.message["partitionId"] if by_id else "Default",
            "name": self.trace,
            "message": self.message["transactionId"],
            "lease": self.message["leaseId"],
        }

        def guess(match: re.Match[str]) -> str:
            return str(guesses.get(match[1], "1"))

        return re.sub(r"\{([^}]*)\}", guess, route.path)


async def test_no_route_tells_anything_of_others(guarded: Guarded, as_: As) -> None:
    secrets = Secrets(as_)
    told = 0
    for route in await all_routes(guarded.dsn):
        if not route.scoped or route.method != "GET":
            continue
        path = secrets.path(route)
        for query in ("", f"?queue={secrets.queue}", f"?namespace={secrets.their_name}"):
            found = secrets.mine.call("GET", path + query)
            assert found.status in (200, 204, 400, 404), (path + query, found)
            assert not secrets.leaks(found, path + query), (path + query, found.raw)
        told += bool(secrets.leaks(secrets.theirs.call("GET", path), path))
    # The owner is told: the routes above do have something to tell.
    assert told > 8


async def test_no_route_changes_anything_of_others(guarded: Guarded, as_: As) -> None:
    secrets = Secrets(as_)
    bodies: dict[str, dict[str, Any]] = {
        "seek": {"toEnd": True},
        "subscription": {"subscriptionTimestamp": "2020-01-01T00:00:00Z"},
        "retry": {"queue": secrets.queue},
    }
    before = secrets.theirs.call("GET", f"/api/v1/consumer-groups/{secrets.group}").json
    letters = secrets.theirs.call("GET", f"/api/v1/dlq?queue={secrets.queue}").json["total"]
    assert letters == 3 and len(before) == 1
    for route in await all_routes(guarded.dsn):
        if not route.scoped or route.method == "GET":
            continue
        path = secrets.path(route) + f"?queue={secrets.queue}"
        body = bodies.get(route.path.rpartition("/")[2])
        answer = secrets.mine.call(route.method, path, body or b"")
        assert answer.status in (200, 400, 404), (path, answer)
    after = secrets.theirs.call("GET", f"/api/v1/consumer-groups/{secrets.group}").json
    for told in (before, after):
        assert told[secrets.queue]["partitions"]
        for one in told[secrets.queue]["partitions"]:
            del one["timeLagSeconds"]
        for key in ("maxTimeLag", "statsAge"):
            del told[secrets.queue][key]
    assert after == before
    assert secrets.theirs.call("GET", f"/api/v1/dlq?queue={secrets.queue}").json["total"] == letters


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/consumer-groups/{g}/pause"),
        ("POST", "/api/v1/consumer-groups/{g}/queues/{q}/pause"),
        ("POST", "/api/v1/consumer-groups/{g}/queues/{q}/seek"),
        ("POST", "/api/v1/consumer-groups/{g}/queues/{q}/partitions/Default/seek"),
        ("GET", "/api/v1/consumer-groups/{g}"),
        ("GET", "/api/v1/resources/queues/{q}"),
        ("GET", "/api/v1/status/queues/{q}"),
        ("GET", "/api/v1/status/queues/{q}/messages"),
        ("DELETE", "/api/v1/dlq?queue={q}"),
        ("DELETE", "/stream/{q}/group/{g}"),
        ("DELETE", "/stream/{q}/group/{g}/consumer/c"),
        ("DELETE", "/stream/no-such-stream/group/{g}"),
        ("GET", "/api/v1/traces/{p}/x"),
    ],
)
def test_what_others_have_is_not_found(as_: As, method: str, path: str) -> None:
    secrets = Secrets(as_)
    where = path.format(g=secrets.group, q=secrets.queue, p=secrets.message["partitionId"])
    body: dict[str, Any] | None = {"toEnd": True} if method == "POST" else None
    assert secrets.mine.call(method, where, body).status == 404
    if method != "DELETE":
        assert secrets.theirs.call(method, where, body).status == 200


# ---- who produced it, literal namespaces, tricks in paths ----

_STAMPED = {
    "producerSub": "mallory",
    "offset": 99,
    "createdAt": "2001-01-01T00:00:00Z",
    "tenant": "x",
    "is_encrypted": True,
}


def test_who_produced_a_message_is_not_for_the_body_to_say(
    guarded: Guarded, admin: Client, queue: str
) -> None:
    with Client(guarded.url, signed(sub="alice")) as alice:
        alice.push({"queue": queue, "payload": 1, **_STAMPED}, {"queue": queue, "payload": 2})
    admin.push({"queue": queue, "payload": 3, "traceId": str(uuid.uuid4()), **_STAMPED})
    found = admin.messages(queue, batch=10)
    assert [one["data"] for one in found] == [1, 2, 3]
    assert [one["producerSub"] for one in found] == ["alice", "alice", "admin-"]
    assert [one["offset"] for one in found] == [0, 1, 2]
    assert not any(one["createdAt"].startswith("2001") for one in found)


def test_frames_and_transactions_are_stamped_too(
    guarded: Guarded, admin: Client, queue: str
) -> None:
    with Client(guarded.url, signed(sub="bob")) as bob:
        lied = encode_frame(queue, "p", ["a"], [b"1"], {"producerSub": ["mallory"]})
        assert bob.push_frames(lied).status == 400
        assert bob.push_frames(encode_frame(queue, "p", ["a", "b"], [b"1", b"2"])).status == 201
        item = {"queue": queue, "partition": "p", "payload": 3, **_STAMPED}
        assert bob.transaction(push_of(item)).status == 200
    found = admin.messages(queue, "p", batch=10)
    assert [one["producerSub"] for one in found] == ["bob", "bob", "bob"]


def test_small_pushes_of_many_producers_keep_theirs(guarded: Guarded, queue: str) -> None:
    """They share a flush, and perhaps a segment."""
    clients = [Client(guarded.url, signed(sub=f"user-{n}")) for n in range(12)]
    for number, client in enumerate(clients):
        client.send("POST", "/api/v1/push", {"items": [{"queue": queue, "payload": number}]})
    for client in clients:
        assert client.receive().status == 201
    for one in clients[0].messages(queue, batch=100):
        assert one["producerSub"] == f"user-{one['data']}"
    for client in clients:
        client.close()


def test_without_authentication_there_is_no_producer(api: Any, queue: str) -> None:
    api.push({"queue": queue, "payload": 1, **_STAMPED})
    assert api.messages(queue)[0]["producerSub"] is None


@pytest.mark.parametrize(
    ("limit", "queue"),
    [("a*", "ab.q"), ("a.*", "a.b"), ("a+b", "aab.q"), (".*", "x.q"), ("%", "x.q"), ("A", "a.q")],
)
def test_a_namespace_is_taken_literally(as_: As, limit: str, queue: str) -> None:
    assert as_("admin", limit).push({"queue": queue, "payload": 1}).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "//api/v1/tokens",
        "/api/v1/../v1/tokens",
        "/api/v1/./tokens",
        "/api/v1/%2e%2e/v1/tokens",
        "/api/v1/tokens/",
        "/API/v1/tokens",
        "/api/v1/tokens;x=1",
        "/api/v1/tokens%00",
        "/api\\v1\\tokens",
        "/health/../api/v1/tokens",
        "/health/live/%2e%2e/%2e%2e/api/v1/tokens",
    ],
)
def test_tricks_in_a_path_lead_nowhere(guarded: Guarded, path: str) -> None:
    with RawConnection(guarded.url) as raw:
        raw.send(request("GET", path))
        assert raw.answer().status in (400, 401, 404, 405)
    with RawConnection(guarded.url) as raw:
        raw.send(request("GET", path, headers=f"Authorization: {guarded.first_token}\r\n"))
        assert raw.answer().status in (400, 404, 405)


def test_an_encoded_path_needs_the_same_role(stranger: Client, as_: As) -> None:
    for path in ("/api/v1/%74okens", "/api/v1/resources/queues/x%2F..%2F..%2Fhealth"):
        assert stranger.call("DELETE", path).status in (401, 404)
        assert as_("read-only").call("DELETE", path).status in (403, 404)


@pytest.mark.parametrize(
    "name", ["X-HTTP-Method-Override", "X-Method-Override", "X-Original-URL", "X-Rewrite-URL"]
)
def test_no_header_changes_what_is_asked(as_: As, name: str) -> None:
    for value in ("DELETE", "/health"):
        answer = as_("read-only").call("POST", "/api/v1/push", b"{}", {name: value})
        assert answer.status == 403


def test_a_sink_is_its_tenants_own(as_: As, tenants: Tenants) -> None:
    """Neither its name nor its stages are of use to somebody else."""
    mine = Sink(tenants.mine)
    assert mine.open().status == 200
    refused = mine.stage(frame(tenants.queue, range(2)))
    assert (refused.status, refused.json["code"]) == (404, "not_found")
    assert mine.stage(frame(f"{tenants.mine_name}.results", range(2))).status == 200
    everybody = Sink(as_("admin"))
    everybody.open()
    for sink in (mine, everybody):
        theirs = Sink(tenants.theirs, sink.query, sink.run)
        for answer in (theirs.open(), theirs.commit((0, 2)), theirs.abort((0, 2))):
            assert answer.status == 404
    # Staged by one who sees everything, under a query of ours.
    Sink(as_("admin"), mine.query, mine.run).stage(frame(tenants.queue, range(2)), task=1)
    assert mine.commit((0, 2), (1, 2)).status == 404
    assert mine.commit((0, 2)).json["status"] == "committed"
    assert len(tenants.mine.messages(f"{tenants.mine_name}.results", batch=10)) == 2


def test_who_staged_it_is_recorded(as_: As, tenants: Tenants) -> None:
    sink = Sink(tenants.mine)
    sink.open()
    queue = f"{tenants.mine_name}.stamped"
    sink.stage(frame(queue, range(2)))
    sink.commit((0, 2))
    tenants.mine.push({"queue": queue, "payload": {}})
    subjects = {one["producerSub"] for one in tenants.mine.messages(queue, batch=10, partitions=5)}
    assert len(subjects) == 1 and None not in subjects


def test_a_pattern_stands_for_queues_of_ours_only(tenants: Tenants) -> None:
    own = f"{tenants.mine_name}.orders"
    tenants.mine.push_many(own, 1)
    body = {"pattern": "*.orders"}
    answer = tenants.mine.call("POST", "/api/v1/fetch/cut", body).json
    assert [queue["queue"] for queue in answer["queues"]] == [own]
    sources = [{"queue": own}, {"queue": tenants.queue}]
    asked = {"sources": sources, "until": answer["sealed"], "existing": True}
    assert tenants.mine.call("POST", "/api/v1/fetch/plan", asked).json["messages"] == 1


def test_the_map_and_what_is_scheduled_end_where_a_namespace_ends(as_: As) -> None:
    mine, theirs = f"ns{uuid.uuid4().hex[:6]}", f"ns{uuid.uuid4().hex[:6]}"
    admin, inside = as_("admin"), as_("read-write", mine)
    for name in (mine, theirs):
        admin.call("POST", "/api/v1/push", {"items": [{"queue": f"{name}.in", "payload": 1}]})
        (message,) = admin.call("GET", f"/api/v1/pop/queue/{name}.in?consumerGroup=g").json[
            "messages"
        ]
        # From each namespace into the other.
        other = theirs if name == mine else mine
        done = {
            "operations": [
                ack_of(message),
                push_of(
                    {"queue": f"{name}.out", "payload": 1}, {"queue": f"{other}.x", "payload": 1}
                ),
            ]
        }
        assert admin.call("POST", "/api/v1/transaction", done).status == 200
        later = {"queue": f"{name}.out", "payload": 1, "delay": 3600}
        assert admin.call("POST", "/api/v1/push", {"items": [later]}).status == 201

    def nodes(client: Client) -> set[str]:
        answer = client.call("GET", "/api/v1/system/map")
        assert answer.status == 200, answer.raw
        return {node["name"] for node in answer.json["nodes"]}

    # What servers have counted is written every now and then.
    until(lambda: {f"{mine}.out", f"{theirs}.out"} <= nodes(admin))
    assert nodes(inside) == {f"{mine}.in", "g", f"{mine}.out"}
    assert inside.call("GET", f"/api/v1/system/map?queue={theirs}.in").status == 404
    scheduled = inside.call("GET", "/api/v1/scheduled").json["scheduled"]
    assert [message["queue"] for message in scheduled] == [f"{mine}.out"]
    for path in ("servers", "postgres", "settings"):
        assert as_("admin", mine).call("GET", f"/api/v1/system/{path}").status == 404

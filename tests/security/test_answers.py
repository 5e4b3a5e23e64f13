"""What the server lets out: headers, errors, logs, and the audit trail."""

from __future__ import annotations

import datetime
import http.client
import io
import json
import logging
import ssl
import time
import uuid
from pathlib import Path

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from queen.server.api.logs import OneLine
from tests.api import Api
from tests.conftest import ServerProcess
from tests.contract.rawhttp import RawConnection, request
from tests.integration.test_serve import Start
from tests.security.client import Client, Guarded
from tests.security.conftest import As
from tests.security.issuer import signed

_GOOD = "https://good.example"

# ---- logs ----


def logged(message: str, *arguments: object, error: Exception | None = None) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.error(message, *arguments, exc_info=error)
    return out.getvalue()


@pytest.mark.parametrize(
    "evil", ["a\nforged", "a\r\nb", "\x1b[2J", "\x9b2J", "\u202eabc", "\u2028"]
)
def test_a_log_line_is_one_line_of_printable_text(evil: str) -> None:
    line = logged("%s %s failed", "GET", evil)
    assert line.endswith("\n") and line[:-1].isprintable()


def test_a_traceback_cannot_pass_for_a_line() -> None:
    lines = logged("failed", error=ValueError("x\nERROR forged\x1b[0m")).splitlines()
    assert lines[0] == "ERROR failed"
    assert all(line.startswith("  | ") and line.isprintable() for line in lines[1:])


# ---- headers and browsers ----


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health"),
        ("POST", "/api/v1/push"),
        ("GET", "/api/v1/pop/queue/none"),
        ("GET", "/nowhere"),
        ("PUT", "/health"),
    ],
)
def test_every_answer_says_how_to_take_it(api: Api, method: str, path: str) -> None:
    answer = api.call(method, path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.status == 204 or answer.headers["content-type"] == "application/json"


def test_streams_and_refusals_say_it_too(api: Api, server: ServerProcess, queue: str) -> None:
    api.push({"queue": queue, "payload": 1})
    assert api.fetch(queue).headers["x-content-type-options"] == "nosniff"
    with RawConnection(server.url) as raw:
        raw.send(b"BROKEN\r\n\r\n")
        assert raw.answer().headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://good.example", ""]
)
def test_a_page_of_another_origin_changes_nothing(api: Api, queue: str, origin: str) -> None:
    """A browser sends simple requests without asking first."""
    body = json.dumps({"items": [{"queue": queue, "payload": 1}]})
    simple = {"Origin": origin, "Content-Type": "text/plain"}
    answer = api.call("POST", "/api/v1/push", body, simple)
    assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    assert api.pop(queue).status == 204


def test_the_servers_own_pages_may_ask(api: Api, server: ServerProcess, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": 1}]})
    assert api.call("POST", "/api/v1/push", body, {"Origin": server.url}).status == 201


def preflight(client: Api, origin: str) -> dict[str, str]:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = client.call("OPTIONS", "/api/v1/push", headers=asked)
    assert answer.status in (204, 403)
    return answer.headers


def test_a_listed_origin_is_let_in_and_no_other(stranger: Client, admin: Client) -> None:
    allowed = preflight(stranger, _GOOD)
    assert allowed["access-control-allow-origin"] == _GOOD
    assert "authorization" in allowed["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in allowed
    for other in ("https://evil.example", "null", _GOOD + ".evil.example", "*"):
        assert "access-control-allow-origin" not in preflight(stranger, other)
    answer = admin.call("GET", "/api/v1/tokens", headers={"Origin": _GOOD})
    assert answer.headers["access-control-allow-origin"] == _GOOD
    assert answer.headers["vary"] == "origin"
    # The page may also read why it was refused.
    assert stranger.call("GET", "/api/v1/tokens", headers={"Origin": _GOOD}).status == 401


def test_cors_is_off_by_default(api: Api) -> None:
    assert "access-control-allow-origin" not in preflight(api, _GOOD)
    assert "access-control-allow-origin" not in api.call("GET", "/health").headers


# ---- TLS ----


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert_file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return cert_file, key_file


def test_tls(start_server: Start, dsn: str, certificate: tuple[Path, Path], queue: str) -> None:
    cert, key = map(str, certificate)
    running = start_server("--database-url", dsn, "--tls-cert", cert, "--tls-key", key)
    trusting = ssl.create_default_context(cafile=cert)
    connection = http.client.HTTPSConnection("localhost", running.port, context=trusting)
    body = json.dumps({"items": [{"queue": queue, "payload": n} for n in range(100)]})
    connection.request("POST", "/api/v1/push", body)
    assert connection.getresponse().read().count(b"queued") == 100
    connection.request("GET", f"/api/v1/fetch/queue/{queue}")
    assert connection.getresponse().read().startswith(b"QSEG")
    connection.close()
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    old = http.client.HTTPSConnection("localhost", running.port, context=trusting)
    old.request("GET", "/health/live")
    assert old.getresponse().status == 200
    old.close()
    with RawConnection(running.url) as plain:
        plain.send(request("GET", "/health/live"))
        assert plain.is_closed()


# ---- errors ----


def test_an_error_holds_no_secret(guarded: Guarded, admin: Client) -> None:
    canary = uuid.uuid4().hex
    tries = [
        admin.push({"queue": "", "payload": canary}),
        admin.call("POST", "/api/v1/push", f'{{"items":[{{"payload":"{canary}"}}]}}'),
        admin.call("POST", "/api/v1/push", canary),
        admin.call("POST", "/api/v1/ack", {"transactionId": 1, "x": canary}),
        admin.create_token(name="x", role=canary),
        admin.call("POST", "/api/v1/transaction", {"operations": canary}),
    ]
    for answer in tries:
        assert answer.status == 400
        assert {"error", "code", "retryable"} <= answer.json.keys()
        for secret in (canary, "postgresql:", "Traceback", "select ", guarded.first_token):
            assert secret not in answer.raw.decode()
    assert canary not in guarded.log.read_text()


# ---- the audit trail ----


def trail(admin: Client, **query: str) -> list[dict[str, object]]:
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    answer = admin.call("GET", f"/api/v1/system/audit?{asked}")
    assert answer.status == 200
    found: list[dict[str, object]] = answer.json["entries"]
    return found


def test_every_administrative_act_is_in_the_trail(guarded: Guarded, queue: str) -> None:
    actor = f"carol-{uuid.uuid4().hex[:8]}"
    with Client(guarded.url, signed(sub=actor)) as carol:
        carol.configure(queue, leaseTime=5)
        carol.delete_queue(queue)
        made = carol.create_token(name="t", role="read-only").json
        carol.call("DELETE", f"/api/v1/tokens/{made['id']}")
        found = trail(carol, actor=actor)
    acts = ["token.revoke", "token.create", "queue.delete", "queue.configure"]
    assert [one["act"] for one in found] == acts
    assert [one["target"] for one in found] == [made["id"], made["id"], queue, queue]
    for one in found:
        assert (one["actor"], one["credential"]) == (actor, "jwt")
        assert (one["outcome"], one["address"]) == ("done", "127.0.0.1")
    lines = [line for line in guarded.log.read_text().splitlines() if actor in line]
    assert len(lines) == 4
    logged = json.loads(lines[0].partition("queen.audit ")[2])
    assert (logged["act"], logged["target"]) == ("queue.configure", queue)
    assert made["token"] not in guarded.log.read_text()


def test_acts_on_groups_and_letters_are_in_the_trail(guarded: Guarded, queue: str) -> None:
    actor, group = f"dave-{uuid.uuid4().hex[:8]}", "/api/v1/consumer-groups/g"
    with Client(guarded.url, signed(sub=actor)) as dave:
        dave.push({"queue": queue, "payload": 1})
        (message,) = dave.messages(queue, consumerGroup="g")
        dave.ack(message, "dlq", consumerGroup="g")
        for method, path, body in (
            ("POST", f"{group}/queues/{queue}/pause", None),
            ("POST", f"{group}/queues/{queue}/resume", None),
            ("POST", f"{group}/queues/{queue}/seek", {"toEnd": True}),
            ("POST", f"{group}/queues/{queue}/seek", {"toEnd": True, "dryRun": True}),
            ("POST", "/api/v1/dlq/retry", {"queue": queue}),
            ("DELETE", f"/api/v1/dlq?queue={queue}", None),
            ("DELETE", f"{group}/queues/{queue}", None),
            ("POST", "/api/v1/system/maintenance", {"enabled": False}),
            ("POST", "/api/v1/system/maintenance/pop", {"enabled": False}),
        ):
            assert dave.call(method, path, body).status == 200, path
        acts = [one["act"] for one in reversed(trail(dave, actor=actor))]
    assert acts == [
        "group.pause",
        "group.resume",
        "group.seek",
        "deadletters.retry",
        "deadletters.purge",
        "group.delete",
        "maintenance.push",
        "maintenance.pop",
    ]


def test_the_trail_comes_in_pages(admin: Client) -> None:
    name = f"pages-{uuid.uuid4().hex[:8]}"
    for _ in range(3):
        admin.configure(name)
    first = admin.call("GET", "/api/v1/system/audit?limit=2&act=queue.configure").json
    assert len(first["entries"]) == 2 and first["next"] == first["entries"][-1]["id"]
    rest = trail(admin, limit="2", act="queue.configure", before=str(first["next"]))
    assert rest[0]["id"] < first["next"]
    for wrong in ("limit=0", "limit=9999", "before=x", "actor=%00"):
        assert admin.call("GET", f"/api/v1/system/audit?{wrong}").status == 400


def test_a_refused_act_is_logged(guarded: Guarded, as_: As) -> None:
    name = f"wanted-{uuid.uuid4().hex[:8]}"
    as_("read-only").delete_queue(name)
    (line,) = [line for line in guarded.log.read_text().splitlines() if name in line]
    assert json.loads(line.partition("queen.audit ")[2])["outcome"] == "refused"


@pytest.mark.parametrize(
    "change",
    ["update queen.audit set actor = 'x'", "delete from queen.audit", "truncate queen.audit"],
)
async def test_nothing_leaves_the_trail(guarded: Guarded, admin: Client, change: str) -> None:
    admin.configure("audited")
    connection = await asyncpg.connect(guarded.dsn)
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await connection.execute(change)
    await connection.close()


async def test_the_use_of_a_token_is_noted(guarded: Guarded) -> None:
    """To within a minute: the note is written by a server that is about to look anyway."""
    from queen.service.admin.tokens import Tokens
    from queen.storage.database import Database

    database = await Database.connect(guarded.dsn, size=1)
    tokens = Tokens(database)
    started = time.time()
    found = await tokens.find(guarded.first_token)
    assert found is not None
    await tokens._note_use()
    rows = await database.fetch("list_tokens", None, 1000, 0)
    (row,) = [one for one in rows if one["id"] == found.id]
    assert row["last_used_at"].timestamp() >= started - 1
    await database.close()

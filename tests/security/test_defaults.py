"""What a server does when nobody has configured anything."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped,unused-ignore]
import pytest

from queen.errors import StartupError
from queen.server.auth.security import Security
from tests.api import Api
from tests.conftest import ENCRYPTION_KEY, ServerProcess
from tests.integration.test_serve import Start, run, start_without_database
from tests.ports import free_port
from tests.security.client import TOKEN, Client, Guarded
from tests.security.issuer import AUDIENCE, ISSUER, SECRET


def test_a_server_listens_on_loopback_only(server: ServerProcess) -> None:
    listening = [
        one.laddr.ip
        for one in psutil.Process(server.pid).net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])  # noqa: S104
def test_another_address_needs_authentication(host: str) -> None:
    refused = run("serve", "--host", host)
    assert refused.returncode == 78
    assert "--auth tokens" in refused.stderr


def test_with_authentication_another_address_is_fine(start_server: Start, dsn: str) -> None:
    running = start_server("--database-url", dsn, "--host", "0.0.0.0", "--auth", "tokens")  # noqa: S104
    api = running.api()
    assert api.call("GET", "/health/live").status == 200
    assert api.push({"queue": "q", "payload": 1}).status == 401


def test_insecure_is_a_word_that_one_has_to_say(start_server: Start, dsn: str) -> None:
    running = start_server("--database-url", dsn, "--host", "0.0.0.0", "--insecure")  # noqa: S104
    assert running.api().push({"queue": "q", "payload": 1}).status == 201


async def test_the_first_token_is_made_shown_once_and_stored_as_a_hash(
    guarded: Guarded, start_server: Start
) -> None:
    again = start_server("--database-url", guarded.dsn, "--auth", "tokens")
    assert not TOKEN.search("".join(again.said))
    with Client(guarded.url, guarded.first_token) as first:
        assert first.call("GET", "/api/v1/tokens").status == 200
    connection = await asyncpg.connect(guarded.dsn)
    rows = await connection.fetch("select * from queen.api_tokens")
    await connection.close()
    secret = guarded.first_token.split("_", 2)[2]
    assert secret not in str(rows) and secret.encode() not in b"".join(row["hash"] for row in rows)
    assert secret not in guarded.log.read_text()


@pytest.mark.parametrize("secret", ["short", "x" * 40, "a-string-secret-at-least-256-bits-long"])
def test_a_weak_secret_is_refused(secret: str) -> None:
    environment = {"JWT_ENABLED": "true", "JWT_ISSUER": ISSUER, "JWT_AUDIENCE": AUDIENCE}
    refused = run("serve", "--port", str(free_port()), **environment, JWT_SECRET=secret)
    assert refused.returncode == 78
    assert "secret" in refused.stderr and secret not in refused.stderr


@pytest.mark.parametrize("missing", ["JWT_ISSUER", "JWT_AUDIENCE"])
def test_issuer_and_audience_must_be_configured(missing: str) -> None:
    environment = {
        "JWT_ENABLED": "true",
        "JWT_ISSUER": ISSUER,
        "JWT_AUDIENCE": AUDIENCE,
        "JWT_SECRET": SECRET,
        missing: "",
    }
    refused = run("serve", "--port", str(free_port()), **environment)
    assert refused.returncode == 78
    assert missing in refused.stderr


def test_an_unreachable_key_set_is_a_reason_not_to_start(dsn: str) -> None:
    refused = run(
        "serve",
        "--port",
        str(free_port()),
        "--database-url",
        dsn,
        JWT_ENABLED="true",
        JWT_ISSUER=ISSUER,
        JWT_AUDIENCE=AUDIENCE,
        JWT_JWKS_URL=f"http://127.0.0.1:{free_port()}/",
        QUEEN_ENCRYPTION_KEY=ENCRYPTION_KEY,
    )
    assert refused.returncode == 78
    assert "key set" in refused.stderr


def test_health_is_open_and_tells_nothing(stranger: Client) -> None:
    for path in ("/health", "/health/ready"):
        answer = stranger.call("GET", path)
        assert answer.status == 200
        assert answer.json.keys() <= {"status", "database", "server"}
        assert not re.search(rb"\d", answer.raw)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/prometheus"])
def test_metrics_need_a_token(stranger: Client, admin: Client, path: str) -> None:
    assert stranger.call("GET", path).status == 401
    assert admin.call("GET", path).status == 200


def test_metrics_can_be_opened(guarded: Guarded, start_server: Start) -> None:
    running = start_server("--database-url", guarded.dsn, "--auth", "tokens", "--open-metrics")
    api = running.api()
    assert api.call("GET", "/metrics/prometheus").status == 200
    assert api.call("GET", "/api/v1/status").status == 401


def test_a_remote_database_without_a_verified_certificate_is_warned_about(
    tmp_path: Path,
) -> None:
    url, log = "postgresql://queen@database.invalid/queen", tmp_path / "log"
    with start_without_database(url, log) as waiting:
        waiting.terminate()
        assert waiting.wait(60) == 0
    assert "sslmode=verify-full" in log.read_text()


def test_the_host_of_a_trusting_server_is_local(api: Api) -> None:
    """A page that reaches loopback by a DNS name of its own is told apart by that name."""
    for host in ("evil.example", "127.0.0.1.evil.example:6632", "queen.evil.example"):
        answer = api.call("GET", "/api/v1/pop/queue/q", headers={"Host": host})
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
    for host in (
        "localhost:6632",
        "127.0.0.1",
        "[::1]:6632",
        "queen",
        "q.localhost",
        "10.1.2.3",
    ):
        assert api.call("GET", "/health/live", headers={"Host": host}).status == 200


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    for arguments in (
        ("--tls-cert", str(tmp_path / "none.pem")),
        ("--tls-cert", str(tmp_path / "none.pem"), "--tls-key", str(tmp_path / "none.pem")),
        ("--cors-origin", "*"),
        ("--cors-origin", "null"),
        ("--auth", "everybody"),
    ):
        assert run("serve", "--port", str(free_port()), *arguments).returncode == 78


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    here, none = tmp_path / "here.pem", tmp_path / "none.pem"
    here.write_text("not a certificate")
    for cert, key, said in (
        (none, here, f"the TLS certificate {none} cannot be read: No such file"),
        (here, none, f"the TLS key {none} cannot be read: No such file"),
        (here, tmp_path, f"the TLS key {tmp_path} cannot be read: Is a directory"),
        (here, here, f"the TLS certificate {here} cannot be used with the key {here}: "),
    ):
        with pytest.raises(StartupError) as refused:
            Security(tls_cert=str(cert), tls_key=str(key)).check("127.0.0.1")
        assert str(refused.value).startswith(said)


def test_only_loopback_can_be_reached_by_default(server: ServerProcess) -> None:
    others = [
        one.address
        for listed in psutil.net_if_addrs().values()
        for one in listed
        if one.family is socket.AF_INET and not one.address.startswith("127.")
    ]
    for address in others:
        with socket.socket() as probe:
            probe.settimeout(2)
            assert probe.connect_ex((address, server.port)) != 0

"""The RESP port as a user starts it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from redis.backoff import NoBackoff
from redis.retry import Retry

from queen.service.admin.tokens import Tokens
from queen.storage.database import Database
from tests.conftest import ServerProcess
from tests.integration.test_serve import Start, run
from tests.ports import free_port
from tests.resp.conftest import Opener
from tests.security.conftest import JWT_ENVIRONMENT
from tests.security.issuer import signed
from tests.waiting import until

# Ends a test's connections.
Connect = Callable[..., redis.Redis]


@pytest.fixture
def connect(request: pytest.FixtureRequest) -> Connect:
    def open_client(port: int, **options: Any) -> redis.Redis:
        client = redis.Redis(
            port=port, decode_responses=True, retry=Retry(NoBackoff(), 0), **options
        )
        request.addfinalizer(client.close)
        return client

    return open_client


def _metric(running: ServerProcess, name: str) -> float:
    text = running.api().call("GET", "/metrics/prometheus").raw.decode()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found.group(1))


def test_the_port_is_off_unless_it_is_asked_for(server: ServerProcess) -> None:
    assert not any("Redis" in line for line in server.said)


def test_clients_are_served_and_counted(start_server: Start, dsn: str, connect: Connect) -> None:
    port = free_port()
    running = start_server("--database-url", dsn, "--resp-port", str(port))
    assert f"streams for Redis clients on redis://127.0.0.1:{port}\n" in running.said
    client = connect(port)
    assert client.ping()
    assert client.info()["tcp_port"] == port
    with pytest.raises(redis.ResponseError, match="unknown command 'GET'"):
        client.get("key")
    assert _metric(running, "queen_resp_connections") == 1
    assert _metric(running, "queen_resp_commands_total") >= 3
    assert _metric(running, "queen_resp_errors_total") >= 1


def test_several_processes_share_the_port(start_server: Start, dsn: str, connect: Connect) -> None:
    port = free_port()
    start_server("--database-url", dsn, "--workers", "2", env={"QUEEN_RESP_PORT": str(port)})
    clients = [connect(port) for _ in range(20)]
    assert len({client.info()["process_id"] for client in clients}) == 2
    assert len({client.client_id() for client in clients}) == 20


async def test_tokens_are_those_of_http(
    start_server: Start, dsn: str, database: Database, connect: Connect
) -> None:
    port = free_port()
    arguments = ("--database-url", dsn, "--resp-port", str(port), "--auth", "tokens")
    start_server(*arguments, env=JWT_ENVIRONMENT)
    tokens = Tokens(database)
    made = await tokens.create("reader", "read-only", None, None, "test")
    with pytest.raises(redis.AuthenticationError):
        connect(port).ping()
    for wrong in ("queen_000000000000_" + "a" * 43, "\xe4", " ", "a.b.c", "x" * 10_000):
        with pytest.raises(redis.AuthenticationError):
            connect(port, password=wrong).ping()
    reader = connect(port, password=made.text)
    assert reader.ping()
    assert connect(port, password=signed(sub="alice", role="read-only")).ping()
    assert connect(port, username="anybody", password=made.text, protocol=2).ping()
    with pytest.raises(redis.exceptions.NoPermissionError, match="User reader has no permissions"):
        reader.xadd("s", {"f": "v"})
    await tokens.revoke(made.id, None)
    # Whoever has come in with it is hung up on.
    until(lambda: _is_refused(reader))


def _is_refused(client: redis.Redis) -> bool:
    try:
        return not client.ping()
    except redis.AuthenticationError:
        return True


def test_the_port_stays_on_loopback_without_authentication() -> None:
    refused = run("serve", "--resp-port", "6379", "--resp-host", "0.0.0.0")  # noqa: S104
    assert refused.returncode == 78
    assert "--auth tokens" in refused.stderr


def test_a_port_that_is_taken_is_told_at_once(server: ServerProcess) -> None:
    refused = run("serve", "--port", str(free_port()), "--resp-port", str(server.port))
    assert refused.returncode == 78
    assert f"cannot listen on 127.0.0.1:{server.port}" in refused.stderr


def _certificate(folder: Path) -> tuple[Path, Path]:
    key, name = Ed25519PrivateKey.generate(), x509.Name([])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, None)
    )
    pem = Encoding.PEM
    (folder / "cert.pem").write_bytes(cert.public_bytes(pem))
    private = key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"


def test_tls_is_that_of_http(
    start_server: Start, dsn: str, connect: Connect, tmp_path: Path
) -> None:
    cert, key = _certificate(tmp_path)
    port = free_port()
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    running = start_server("--database-url", dsn, "--resp-port", str(port), *tls)
    assert f"streams for Redis clients on rediss://127.0.0.1:{port}\n" in running.said
    assert connect(port, host="127.0.0.1", ssl=True, ssl_ca_certs=str(cert)).ping()


async def test_clients_are_hung_up_on_when_the_server_stops(
    start_server: Start, dsn: str, open_wire: Opener
) -> None:
    port = free_port()
    running = start_server("--database-url", dsn, "--resp-port", str(port))
    wire = await open_wire(port)
    assert await wire.ask("PING") == b"+PONG\r\n"
    stopping = asyncio.create_task(asyncio.to_thread(running.stop))
    assert await wire.rest() == b""
    assert await stopping == 0

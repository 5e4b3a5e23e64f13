"""Contexts, tokens over HTTP, certificates, logs and completion."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queen.core.options import OPTION_NAMES
from tests.api import Api
from tests.cli.conftest import QUEEN, Run, environment
from tests.conftest import ServerProcess
from tests.programs import bound
from tests.waiting import until


def test_version_and_short_help(run: Run) -> None:
    assert run("--version").out.startswith("queen ")
    assert "Usage" in run("-h").out
    assert "Usage" in run("queue", "alter", "-h").out


# ---- contexts ----


def test_servers_have_names(run: Run, server: ServerProcess, queue: str, tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path), "QUEEN_URL": None}
    run("push", queue, "1")
    run("context", "add", "here", "--url", server.url, "--token", "secret-token", **own)
    run("context", "add", "gone", "--url", "http://127.0.0.1:1", **own)
    file = tmp_path / "queen" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    listed = run("context", "list", **own)
    assert "secret-token" not in listed.out
    assert [(row["name"], row["inUse"]) for row in listed.rows] == [("gone", False), ("here", True)]
    # The first one is in use; a name on the command line or in the environment goes before it.
    assert run("queue", "show", queue, **own).row["name"] == queue
    run("queue", "list", "--context", "gone", code=5, **own)
    run("queue", "list", code=5, **own, QUEEN_CONTEXT="gone")
    run("context", "use", "gone", **own)
    run("queue", "list", code=5, **own)
    assert run("queue", "list", "--context", "here", **own).out
    # A URL goes before what is in use.
    assert run("queue", "list", **{**own, "QUEEN_URL": server.url}).out
    run("context", "remove", "gone", **own)
    assert [row["name"] for row in run("context", "list", **own).rows] == ["here"]


def test_a_context_that_is_not_there_is_told_by_name(run: Run, tmp_path: Path) -> None:
    own = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert "'nosuch'" in run("queue", "list", "--context", "nosuch", code=3, **own).err
    assert "'nosuch'" in run("context", "use", "nosuch", code=3, **own).err
    refused = run("queue", "list", "--context", "x", "--url", "http://a", code=2, **own)
    assert "not both" in refused.err
    run("context", "add", "bad", "--url", "ftp://x", code=2, **own)
    (tmp_path / "queen").mkdir(exist_ok=True)
    (tmp_path / "queen" / "contexts.json").write_text("{]")
    assert "is not a file of contexts" in run("queue", "list", code=2, **own, QUEEN_URL=None).err


# ---- tokens of a server ----


def test_tokens_are_made_listed_and_revoked_over_http(
    run: Run, start_server: Callable[..., ServerProcess], dsn: str
) -> None:
    guarded = start_server("--database-url", dsn, "--auth", "tokens")
    # Directly in the database, as the first one is made.
    asked = ("token", "create", "--name", "boss", "--role", "admin", "--database-url", dsn)
    first = run(*asked, QUEEN_URL=None).out.strip()
    there = {"QUEEN_URL": guarded.url, "QUEEN_TOKEN": first}
    made = run("token", "create", "--name", "billing", "--role", "read-only", **there).out.strip()
    rows = run("token", "list", **there).rows
    (billing,) = [row for row in rows if row["name"] == "billing"]
    assert billing["role"] == "read-only"
    assert made not in json.dumps(rows)
    reader = {**there, "QUEEN_TOKEN": made}
    run("queue", "list", **reader)
    run("push", "q", "1", code=4, **reader)
    run("token", "list", code=4, **reader)
    assert "revoked" in run("token", "revoke", billing["id"], **there).out
    run("token", "revoke", "nosuch", code=3, **there)
    until(lambda: _is_refused(run, reader))


def _is_refused(run: Run, reader: dict[str, str]) -> bool:
    try:
        run("queue", "list", code=4, **reader)
    except AssertionError:
        return False
    return True


# ---- certificates ----


def test_a_certificate_of_its_own_is_trusted_when_told(
    run: Run, start_server: Callable[..., ServerProcess], dsn: str, tmp_path: Path
) -> None:
    cert, key = _certificate(tmp_path)
    secure = start_server("--database-url", dsn, "--tls-cert", cert, "--tls-key", key)
    there = {"QUEEN_URL": f"https://localhost:{secure.port}"}
    refused = run("queue", "list", code=5, **there)
    assert "certificate" in refused.err
    assert "--cacert" in refused.err
    run("queue", "list", "--cacert", cert, **there)
    run("queue", "list", **there, QUEEN_CACERT=cert)
    assert "no certificate" in run("queue", "list", "--cacert", __file__, code=2, **there).err
    found = checkup(run, "--cacert", cert, **there)
    (name,) = [name for name in found if name.startswith("certificate of")]
    assert "good for" in found[name]["says"]


def _certificate(folder: Path) -> tuple[str, str]:
    """Return a certificate for localhost that nobody else has signed, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=90))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return str(cert_file), str(key_file)


# ---- doctor ----


def checkup(run: Run, *arguments: str, **more: str) -> dict[str, Any]:
    """What the doctor says, by check. Other tests share its broker and fill the disk: 1 is fine."""
    ran = run("doctor", *arguments, code=(0, 1), **more)
    found = {row["check"]: row for row in ran.rows}
    assert ran.code == any(row["level"] == "problem" for row in found.values())
    return found


def test_the_doctor_says_what_is_well(run: Run) -> None:
    found = checkup(run)
    assert found["client version"]["level"] == "ok"
    assert found["fsync"]["level"] in ("ok", "problem")
    assert {"Python", "Spark", "disk", "clock of this machine and the server"} <= found.keys()


def test_the_doctor_says_that_nobody_is_there(run: Run) -> None:
    found = {row["check"]: row for row in run("doctor", "--url", "http://127.0.0.1:1", code=5).rows}
    assert found["server"]["level"] == "problem"
    assert found["Python"]["level"] == "ok"


# ---- the server's log and first lines ----


def test_a_server_says_where_it_is_logs_json_and_a_tail_ends_without_it(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    running = start_server("--data-dir", str(data), "--log-format", "json", log=log)
    assert running.process.stdout is not None
    said = "".join(running.process.stdout.readline() for _ in range(3))
    assert f"data: {data}" in said
    assert "authentication: none" in said
    assert f"{running.url}/docs" in said
    api = running.api()
    api.push_many("orders", 1)
    api.push_many("others", 1)
    assert api.delete_queue("others").status == 200
    (line,) = until(lambda: [one for one in log.read_text().splitlines() if "queue.delete" in one])
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("info", "queen.audit")
    assert (entry["audit"]["act"], entry["audit"]["target"]) == ("queue.delete", "others")
    assert entry["message"] == "queue.delete others done"
    _check_tail(running)


def _check_tail(running: ServerProcess) -> None:
    """A tail ends at once on Ctrl-C, although the server has gone."""
    tail = subprocess.Popen(
        [QUEEN, "tail", "orders"],
        env=environment(running.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with bound(tail):
        assert tail.stderr is not None
        assert "following" in tail.stderr.readline()
        running.kill()
        began = time.monotonic()
        tail.send_signal(signal.SIGINT)
        tail.communicate(timeout=60)
        # What is left is the end of Python on a busy machine; it was 50 s.
        assert time.monotonic() - began < 10


def test_a_server_says_at_its_start_which_queues_keep_everything(
    start_server: Callable[..., ServerProcess], api: Api, queue: str, dsn: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    api.push_many(queue, 1)
    start_server("--database-url", dsn, log=log)
    until(lambda: "every message for ever (" in log.read_text())


# ---- completion ----


def complete(server: ServerProcess, words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Press Tab at the end of a line of bash."""
    typed = words.split(" ")
    env = {
        **environment(server.url),
        "_QUEEN_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
        **more,
    }
    return subprocess.run([QUEEN], env=env, capture_output=True, text=True, check=False, timeout=60)


def test_names_are_completed(run: Run, server: ServerProcess, queue: str) -> None:
    run("push", queue, "1")
    run("pop", queue, "-g", f"group-{queue}")
    assert complete(server, f"queen queue show {queue[:-2]}").stdout.split() == [queue]
    assert complete(server, f"queen group show group-{queue[:-2]}").stdout.split() == [
        f"group-{queue}"
    ]
    assert complete(server, f"queen pop {queue} --group group-{queue[:-2]}").stdout.split() == [
        f"group-{queue}"
    ]
    options = complete(server, f"queen queue alter {queue} --option leas").stdout.split()
    assert options == ["leaseTime="]
    assert "leaseTime" in OPTION_NAMES
    assert "__QUEUE_MODE__" not in complete(server, "queen group show ").stdout


@pytest.mark.parametrize("word", ["queue show ", "group show ", "pipeline run ", "stream show "])
def test_completion_says_nothing_of_its_troubles(server: ServerProcess, word: str) -> None:
    began = time.monotonic()
    done = complete(server, f"queen {word}", QUEEN_URL="http://127.0.0.1:1")
    assert (done.stdout.strip(), done.stderr) == ("", "")
    done = complete(server, f"queen {word}", QUEEN_URL="ftp://nonsense")
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert time.monotonic() - began < 30

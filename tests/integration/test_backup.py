"""A dump of the database, restored: messages, places of groups, leases and keys are all there.

The commands are those of `docs/howto/backup.md`. What `docs/howto/disaster.md` says of a lost
key and of a dead server's disk is tried as well.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from queen.storage.embedded import EmbeddedPostgres
from queen.storage.programs import bundled_programs
from tests.api import Api
from tests.conftest import ServerProcess
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/howto/backup.md"
Start = Callable[..., ServerProcess]


def commands(word: str) -> list[str]:
    """Return the commands of the page's shell blocks that begin with a word."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith(word)]


@pytest.fixture
def databases(postgres: EmbeddedPostgres) -> Iterator[tuple[str, str]]:
    """The URL of a new database, and that of one which does not exist yet."""
    names = [f"backup_{uuid.uuid4().hex[:8]}" for _ in range(2)]
    urls = [urlunsplit(urlsplit(postgres.dsn)._replace(path=f"/{name}")) for name in names]
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"create database {names[0]}")
        yield urls[0], urls[1]
        for name in names:
            admin.execute(f"drop database if exists {name} with (force)")


def test_the_url_of_the_embedded_postgresql_is_that_of_the_page() -> None:
    (url,) = re.findall(r"`(postgresql://\S+DATA_DIR\S+)`", PAGE.read_text())
    own = conninfo_to_dict(EmbeddedPostgres(Path("/var/lib/queen"), {}).dsn)
    # It is the usual one, so the page does not name it.
    assert own.pop("port") == "5432"
    assert conninfo_to_dict(url.replace("DATA_DIR", "/var/lib/queen")) == own


def run(command: str, folder: Path, old: str, new: str) -> None:
    """Run a command of the page in the shell, with the two databases and our own programs."""
    path = f"{bundled_programs()}:{os.environ['PATH']}"
    # The bundled PostgreSQL of a root's machine has an administrator of its own name.
    admin = urlunsplit(urlsplit(old)._replace(path="/postgres"))
    env = {**os.environ, "PATH": path, "OLD": old, "NEW": new, "ADMIN": admin}
    env["NAME"] = urlsplit(new).path.lstrip("/")
    subprocess.run(["sh", "-e", "-c", command], cwd=folder, env=env, check=True)


def fill(api: Api) -> str:
    """Work on queues for a while; return the lease of a message that is not acked yet."""
    api.configure("orders", retryLimit=0)
    api.configure("secrets", encryptionEnabled=True)
    for name in ("anna", "bruno"):
        items = [{"queue": "orders", "partition": name, "payload": n} for n in range(5)]
        assert api.push(*items).status == 201
    assert api.push({"queue": "secrets", "payload": "hush"}).status == 201
    done = api.call("GET", "/api/v1/pop/queue/orders/partition/anna?consumerGroup=billing&batch=2")
    for message in done.messages:
        assert ack(api, message, "completed") == 200
    failed = api.call("GET", "/api/v1/pop/queue/orders/partition/anna?consumerGroup=billing")
    assert ack(api, failed.messages[0], "failed") == 200
    held = api.call("GET", "/api/v1/pop/queue/orders/partition/bruno?consumerGroup=billing")
    return str(held.messages[0]["leaseId"])


def ack(api: Api, message: dict[str, object], status: str, lease: object = None) -> int:
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": lease or message["leaseId"],
        "consumerGroup": "billing",
        "status": status,
    }
    answer = api.call("POST", "/api/v1/ack", body)
    assert answer.json["success"], answer.json
    return answer.status


def test_a_dump_is_restored_with_everything_in_it(
    databases: tuple[str, str], start_server: Start, tmp_path: Path
) -> None:
    old, new = databases
    first = start_server("--database-url", old)
    lease = fill(first.api())
    (dump,), (create,), (restore,) = (
        commands("pg_dump"),
        commands("createdb"),
        commands("pg_restore"),
    )
    assert shlex.split(dump)[0] == "pg_dump"
    run(dump, tmp_path, old, new)
    # What comes after the dump is not in it.
    assert first.api().push({"queue": "orders", "partition": "anna", "payload": 99}).status == 201
    assert first.stop() == 0
    for command in (create, restore):
        run(command, tmp_path, old, new)
    api = start_server("--database-url", new).api()
    url = "/api/v1/pop/queue/orders/partition/{}?consumerGroup={}&batch=10"
    whole = api.call("GET", url.format("anna", "everybody")).messages
    assert [message["data"] for message in whole] == [0, 1, 2, 3, 4]
    # The place of a group: two were done, the third is a dead letter.
    rest = api.call("GET", url.format("anna", "billing")).messages
    assert [message["data"] for message in rest] == [3, 4]
    letters = api.call("GET", "/api/v1/dlq?queue=orders").json["messages"]
    assert [letter["data"] for letter in letters] == [2]
    # A lease that has not ended is held by whom it was given to.
    assert api.call("GET", url.format("bruno", "billing")).status == 204
    held = api.call("GET", url.format("bruno", "everybody")).messages[0]
    assert ack(api, held, "completed", lease) == 200
    assert [m["data"] for m in api.call("GET", url.format("bruno", "billing")).messages] == [
        1,
        2,
        3,
        4,
    ]
    assert api.messages("secrets")[0]["data"] == "hush"
    # Offsets go on where the dump ended.
    assert api.push({"queue": "orders", "partition": "anna", "payload": 5}).status == 201
    last = api.call("GET", url.format("anna", "later") + "&subscriptionMode=all").messages[-1]
    assert (last["data"], last["offset"]) == (5, 5)


def test_without_the_key_what_is_encrypted_stays_so(
    databases: tuple[str, str], start_server: Start
) -> None:
    old, _ = databases
    first = start_server("--database-url", old)
    fill(first.api())
    assert first.stop() == 0
    other = "fedcba9876543210" * 4
    api = start_server("--database-url", old, env={"QUEEN_ENCRYPTION_KEY": other}).api()
    answer = api.call("GET", "/api/v1/pop/queue/secrets?consumerGroup=billing")
    assert answer.status == 503
    assert "hush" not in answer.raw.decode()
    # Its neighbours are as they were.
    orders = api.call("GET", "/api/v1/pop/queue/orders/partition/anna?consumerGroup=new&batch=9")
    assert [message["data"] for message in orders.messages] == [0, 1, 2, 3, 4]
    # What comes now has the new key, and a group that is moved past the rest goes on with it.
    assert api.push({"queue": "secrets", "payload": "again"}).status == 201
    seek = "/api/v1/consumer-groups/billing/queues/secrets/seek"
    assert api.call("POST", seek, {"toEnd": True}).status == 200
    assert api.push({"queue": "secrets", "payload": "last"}).status == 201
    later = api.call("GET", "/api/v1/pop/queue/secrets?consumerGroup=billing&batch=9")
    assert [message["data"] for message in later.messages] == ["last"]


def _set_maintenance(server: ServerProcess, is_on: bool) -> None:
    body = {"enabled": is_on}
    assert server.api().call("POST", "/api/v1/system/maintenance", body).status == 200


def test_a_copied_folder_is_stored_once(
    databases: tuple[str, str], start_server: Start, tmp_path: Path, queue: str
) -> None:
    owner = {"QUEEN_SPOOL_OWNER": "orders"}
    words = ("--database-url", databases[0], "--spool-dir")
    dead = start_server(*words, str(tmp_path / "spool"), env=owner)
    _set_maintenance(dead, True)
    answer = dead.api().push({"queue": queue, "payload": 1}, {"queue": queue, "payload": 2})
    assert answer.status == 202
    dead.kill()
    shutil.copytree(tmp_path / "spool", tmp_path / "rescued", symlinks=True)
    other = start_server(*words, str(tmp_path / "rescued"), env=owner)
    _set_maintenance(other, False)
    until(lambda: other.api().call("GET", "/api/v1/spool").json["records"] == 0)
    # The first disk is found again: what is on it has been stored, and nobody stores it twice.
    assert other.stop() == 0
    again = start_server(*words, str(tmp_path / "spool"), env=owner)
    until(lambda: again.api().call("GET", "/api/v1/spool").json["records"] == 0)
    found = again.api().messages(queue, batch=10)
    assert [message["data"] for message in found] == [1, 2]

"""Who is let in. The rules of JWTs have their own tests in `tests/unit`."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from typing import Any

import asyncpg
import pytest

from tests.api import Answer
from tests.conftest import ServerProcess
from tests.integration.test_serve import Start, run
from tests.security.client import TOKEN, Client, Guarded
from tests.security.conftest import As
from tests.security.issuer import (
    ed_key,
    forged,
    jwk,
    key_server,
    pem,
    rsa_key,
    signed,
)
from tests.waiting import until

_PATH = "/api/v1/tokens"


def is_refused(answer: Answer) -> bool:
    assert answer.status == 401, answer
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json == {
        "error": "Authentication required",
        "code": "unauthenticated",
        "retryable": False,
    }
    return True


def ask(guarded: Guarded, header: str | None) -> Answer:
    with Client(guarded.url, None) as client:
        return client.call(
            "GET", _PATH, headers={} if header is None else {"Authorization": header}
        )


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer    ",
        "garbage",
        "Bearer garbage",
        "Bearer a.b.c",
        "Basic YWRtaW46YWRtaW4=",
        "Bearer queen_000000000000_" + "A" * 43,
        "Bearer queen_",
        "Bearer queen_' or 1=1_" + "A" * 43,
        "Bearer \x80\xff",
        "Bearer a b",
    ],
)
def test_all_who_fail_get_the_same_answer(guarded: Guarded, header: str | None) -> None:
    assert is_refused(ask(guarded, header))


@pytest.mark.parametrize("word", ["Bearer ", "bearer ", "BEARER  ", ""])
def test_a_good_token_is_good_with_and_without_its_word(guarded: Guarded, word: str) -> None:
    assert ask(guarded, word + guarded.first_token).status == 200
    assert ask(guarded, word + signed()).status == 200


def test_a_wrong_secret_is_refused(guarded: Guarded) -> None:
    token = guarded.first_token
    for wrong in (token[:-1] + ("A" if token[-1] != "A" else "B"), token + "A", token[:-1]):
        assert is_refused(ask(guarded, f"Bearer {wrong}"))


def test_two_authorization_headers_are_one_too_many(guarded: Guarded) -> None:
    from tests.contract.rawhttp import RawConnection, request

    with RawConnection(guarded.url) as raw:
        good = f"Authorization: Bearer {guarded.first_token}\r\n"
        raw.send(request("GET", _PATH, headers="Authorization: Bearer x\r\n" + good))
        assert raw.answer().status == 400
        assert raw.is_closed()


@pytest.mark.parametrize("name", ["none", "None", "nOnE"])
def test_an_unsigned_token_is_refused(guarded: Guarded, name: str) -> None:
    assert is_refused(ask(guarded, f"Bearer {forged({'alg': name})}"))


def test_a_public_key_is_no_secret(guarded: Guarded) -> None:
    for key in (rsa_key(), ed_key()):
        token = forged({"alg": "HS256"}, pem(key).encode())
        assert is_refused(ask(guarded, f"Bearer {token}"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": int(time.time()) - 100},
        {"exp": None},
        {"aud": "other"},
        {"headers": {"crit": ["x"], "x": 1}},
        {"headers": {"kid": "../../etc/passwd"}, "key": ed_key(1)},
    ],
    ids=["over", "endless", "not for us", "critical header", "key id that is a path"],
)
def test_a_token_that_breaks_a_rule_is_refused(guarded: Guarded, wrong: dict[str, Any]) -> None:
    assert is_refused(ask(guarded, f"Bearer {signed(**wrong)}"))


def test_a_token_that_was_good_ends(guarded: Guarded) -> None:
    """The server remembers good tokens, but not beyond their end."""

    def good() -> str | None:
        made = signed(exp=int(time.time()) - 28)
        return made if ask(guarded, f"Bearer {made}").status == 200 else None

    token = until(good)
    until(lambda: ask(guarded, f"Bearer {token}").status != 200)
    assert is_refused(ask(guarded, f"Bearer {token}"))


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "jwt"])
def test_a_token_in_the_url_is_no_token(guarded: Guarded, name: str) -> None:
    with Client(guarded.url, None) as client:
        assert is_refused(client.call("GET", f"{_PATH}?{name}={guarded.first_token}"))
    assert guarded.first_token not in guarded.log.read_text()


def test_a_revoked_token_is_refused_by_every_server(
    guarded: Guarded, admin: Client, start_server: Start, acting: ExitStack
) -> None:
    second = start_server("--database-url", guarded.dsn, "--auth", "tokens")
    made = admin.create_token(name="leaver", role="read-write").json
    here = acting.enter_context(Client(guarded.url, made["token"]))
    there = acting.enter_context(Client(second.url, made["token"]))
    path = "/api/v1/pop/queue/leaver.q"
    # A token is good at another server as soon as it is made.
    assert {here.call("GET", path).status, there.call("GET", path).status} == {204}
    assert admin.call("DELETE", f"{_PATH}/{made['id']}").json["revoked"] is True
    assert is_refused(here.call("GET", path))
    until(lambda: there.call("GET", path).status == 401, 20)


def test_a_token_ends_at_its_time(admin: Client, guarded: Guarded, acting: ExitStack) -> None:
    made = admin.create_token(name="guest", role="read-only", expiresInSeconds=1).json
    guest = acting.enter_context(Client(guarded.url, made["token"]))
    until(lambda: guest.call("GET", "/api/v1/fetch/queue/none").status == 401)


def test_a_rotated_key_set(start_server: Start, dsn: str, acting: ExitStack, queue: str) -> None:
    with key_server() as issuer:
        issuer.keys = [jwk(ed_key(), "one"), jwk(ed_key(1), "two")]
        running = start_server(
            "--database-url",
            dsn,
            env={
                "JWT_ENABLED": "true",
                "JWT_ISSUER": "https://issuer.example",
                "JWT_AUDIENCE": "queen",
                "JWT_JWKS_URL": issuer.url,
                "JWT_JWKS_REFRESH_INTERVAL": "1",
            },
        )
        one = acting.enter_context(Client(running.url, signed(headers={"kid": "one"})))
        two = acting.enter_context(Client(running.url, signed(ed_key(1), headers={"kid": "two"})))
        assert {one.pop(queue).status, two.pop(queue).status} == {204}
        issuer.keys = issuer.keys[1:]
        until(lambda: one.pop(queue).status == 401)
        assert two.pop(queue).status == 204


# ---- tokens as an administrator sees them ----


def test_a_token_is_shown_once(admin: Client) -> None:
    made = admin.create_token(name="billing", role="read-only", namespaces=["shop"])
    assert made.status == 201 and TOKEN.fullmatch(made.json["token"])
    listed = admin.call("GET", f"{_PATH}?limit=1000")
    assert made.json["token"] not in listed.raw.decode()
    (row,) = [one for one in listed.json["tokens"] if one["id"] == made.json["id"]]
    assert (row["name"], row["role"], row["namespaces"]) == ("billing", "read-only", ["shop"])
    assert row["createdAt"].endswith("Z") and row["revokedAt"] is None
    page = admin.call("GET", f"{_PATH}?limit=1&offset=1").json["tokens"]
    assert len(page) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "", "role": "admin"},
        {"name": "a\nb", "role": "admin"},
        {"name": "x" * 300, "role": "admin"},
        {"name": "a", "role": "root"},
        {"name": "a"},
        {"name": "a", "role": "admin", "namespaces": []},
        {"name": "a", "role": "admin", "namespaces": [""]},
        {"name": "a", "role": "admin", "expiresInSeconds": 0},
        {"name": "a", "role": "admin", "expiresInSeconds": 10**18},
        {"name": "a", "role": "admin", "hash": "x"},
    ],
    ids=str,
)
def test_a_token_that_makes_no_sense_is_a_400(admin: Client, wrong: dict[str, Any]) -> None:
    assert admin.create_token(**wrong).status == 400


def test_a_token_that_does_not_exist_cannot_be_revoked(admin: Client) -> None:
    for one in ("000000000000", "x", "%00", "a%20b"):
        assert admin.call("DELETE", f"{_PATH}/{one}").status == 404


def test_a_limited_admin_gives_no_more_than_it_has(as_: As, admin: Client) -> None:
    limited = as_("admin", "mine")
    other = admin.create_token(name="other", role="read-only", namespaces=["theirs"]).json
    for namespaces in (None, ["theirs"], ["mine", "theirs"]):
        answer = limited.create_token(name="x", role="admin", namespaces=namespaces)
        assert answer.status == 403
    made = limited.create_token(name="x", role="read-only", namespaces=["mine"])
    assert made.status == 201
    listed = {one["id"] for one in limited.call("GET", f"{_PATH}?limit=1000").json["tokens"]}
    assert made.json["id"] in listed and other["id"] not in listed
    assert limited.call("DELETE", f"{_PATH}/{other['id']}").status == 404
    assert limited.call("GET", "/api/v1/system/audit").status == 404


def test_the_command_line_makes_lists_and_revokes(guarded: Guarded, acting: ExitStack) -> None:
    where = ("--database-url", guarded.dsn)
    made = run("token", "create", "--name", "cli", "--role", "admin", *where)
    assert made.returncode == 0, made.stderr
    token = made.stdout.strip()
    assert TOKEN.fullmatch(token)
    client = acting.enter_context(Client(guarded.url, token))
    assert client.call("GET", _PATH).status == 200
    token_id = token.split("_")[1]
    listed = run("token", "list", *where)
    assert token_id in [json.loads(line)["id"] for line in listed.stdout.splitlines()]
    assert token.split("_", 2)[2] not in listed.stdout
    assert run("token", "revoke", token_id, *where).returncode == 0
    assert run("token", "revoke", "000000000000", *where).returncode == 3
    assert run("token", "create", "--name", "x", "--role", "king", *where).returncode == 1
    until(lambda: client.call("GET", _PATH).status == 401, 20)


async def test_a_server_that_has_lost_its_database_still_knows_its_tokens(
    guarded: Guarded, admin: Client
) -> None:
    """Nobody can revoke anything while the database is away; 503 is the honest answer."""
    connection = await asyncpg.connect(guarded.dsn)
    try:
        await connection.execute("alter table queen.api_tokens rename to api_tokens_away")
        assert admin.pop("some.queue").status == 204
        assert ask(guarded, "Bearer queen_123456789abc_" + "A" * 43).status == 503
    finally:
        await connection.execute("alter table queen.api_tokens_away rename to api_tokens")
        await connection.close()


def test_without_authentication_tokens_are_not_looked_at(server: ServerProcess) -> None:
    with Client(server.url, "nonsense") as client:
        assert client.pop("q-none").status == 204

"""The rules that make a JWT a caller, with real keys."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queen.errors import StartupError, Unauthenticated, Unavailable
from queen.server.auth import keys as keys_module
from queen.server.auth.access import Role
from queen.server.auth.claims import Claims, Verified
from queen.server.auth.keys import Keys, parse_set
from queen.server.auth.options import JwtOptions, auth_options, jwt_options
from tests.security.issuer import (
    AUDIENCE,
    ISSUER,
    SECRET,
    KeyServer,
    by_ed25519,
    claims,
    ed_key,
    forged,
    jwk,
    key_server,
    options,
    pem,
    rsa_key,
    signed,
)


async def verified(token: str, wanted: JwtOptions | None = None) -> Verified:
    return await _claims(wanted).verify(token)


def _claims(wanted: JwtOptions | None = None) -> Claims:
    wanted = wanted or options(public_key=pem(rsa_key()) + pem(ed_key()))
    return Claims(wanted, Keys(wanted))


async def refused(token: str, wanted: JwtOptions | None = None) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await verified(token, wanted)
    assert caught.value.message == "Authentication required"


# ---- what is good ----


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        (signed, lambda: options(public_key=pem(ed_key()))),
        (lambda: signed(rsa_key(), "RS256"), lambda: options(public_key=pem(rsa_key()))),
        (lambda: signed(SECRET, "HS256"), lambda: options(secrets=(SECRET,))),
    ],
    ids=["EdDSA", "RS256", "HS256"],
)
async def test_a_good_token_is_a_caller(token: Any, wanted: Any) -> None:
    found = await verified(token(), wanted())
    assert found.caller == ("alice", Role.ADMIN, None, "jwt")
    assert found.ends_at == pytest.approx(time.time() + 630, abs=5)


@pytest.mark.parametrize(
    ("words", "role"),
    [
        ({"role": "read-only"}, Role.READ),
        ({"role": "read-write"}, Role.WRITE),
        ({"role": None, "roles": ["read-only", "read-write", "x"]}, Role.WRITE),
        ({"role": "read-only", "roles": ["admin"]}, Role.ADMIN),
        ({"role": "root"}, Role.OPEN),
        ({"role": None}, Role.OPEN),
        ({"role": None, "roles": "admin"}, Role.OPEN),
        ({"role": ["admin"]}, Role.OPEN),
        ({"role": None, "roles": [{"admin": 1}, 1, None]}, Role.OPEN),
        ({"role": "Admin"}, Role.OPEN),
    ],
)
async def test_the_role_is_the_highest_that_a_token_names(words: Any, role: Role) -> None:
    assert (await verified(signed(**words))).caller.role is role


async def test_claims_and_roles_can_be_called_otherwise() -> None:
    wanted = options(
        public_key=pem(ed_key()),
        role_claim="scope",
        namespaces_claim="tenants",
        role_words={"boss": Role.ADMIN},
    )
    token = signed(role=None, scope="boss", tenants=["a"])
    found = (await verified(token, wanted)).caller
    assert (found.role, found.namespaces) == (Role.ADMIN, frozenset({"a"}))


@pytest.mark.parametrize("listed", ["shop", {"shop": 1}, [1], [["shop"]], 0, False])
async def test_a_limit_that_cannot_be_read_is_not_no_limit(listed: Any) -> None:
    await refused(signed(namespaces=listed))


async def test_no_namespace_is_not_all_namespaces() -> None:
    assert (await verified(signed(namespaces=[]))).caller.namespaces == frozenset()


@pytest.mark.parametrize("subject", ["", "a\nb", "x" * 300, 7, ["a"], "\ud800"])
async def test_a_subject_that_cannot_be_written_down_is_refused(subject: Any) -> None:
    await refused(signed(sub=subject))


# ---- what is refused ----


@pytest.mark.parametrize("name", ["none", "None", "nOnE", "", "HS512", "RS512", "ES256"])
async def test_another_algorithm_is_refused(name: str) -> None:
    await refused(forged({"alg": name, "typ": "JWT"}))
    await refused(forged({"alg": name, "typ": "JWT"}, SECRET.encode()), options(secrets=(SECRET,)))


async def test_a_signature_that_is_cut_off_is_refused() -> None:
    head, body, signature = signed().split(".")
    for token in (f"{head}.{body}.", f"{head}.{body}", f"{head}.{body}.{signature[:-4]}"):
        await refused(token)


async def test_a_public_key_is_not_a_secret() -> None:
    """Key confusion: HMAC with the text of the RSA key."""
    for text in (pem(rsa_key()), pem(rsa_key()).strip()):
        await refused(forged({"alg": "HS256", "typ": "JWT"}, text.encode()))


async def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    both = options(public_key=pem(ed_key()), secrets=(SECRET,))
    assert (await verified(signed(SECRET, "HS256"), both)).caller.subject == "alice"
    await refused(by_ed25519({"alg": "HS256"}), both)
    await refused(by_ed25519({"alg": "RS256"}))


@pytest.mark.parametrize(
    "special",
    [
        {"crit": ["exp"]},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": False},
        {"b64": True},
        {"enc": "A256GCM"},
        {"zip": "DEF"},
    ],
)
async def test_what_asks_for_special_treatment_is_refused(special: dict[str, Any]) -> None:
    await refused(by_ed25519({"alg": "EdDSA", **special}))


@pytest.mark.parametrize(
    "token",
    ["", ".", "..", "a.b.c", "a.b.c.d.e", "é.é.é", "e30.e30.e30", "W10.W10.x", "x" * 9000],
)
async def test_what_is_no_jws_is_refused(token: str) -> None:
    await refused(token)


@pytest.mark.parametrize("kid", ["../../etc/passwd", "' or 1=1 --", "x" * 10_000, "", "a\0b"])
async def test_a_key_id_is_only_looked_up(kid: str) -> None:
    set_of_one = options(jwks_file="unused")
    found = Keys(set_of_one)
    found._named, _ = parse_set(json.dumps({"keys": [jwk(ed_key(), "one")]}).encode(), None)
    found._tried_at = time.monotonic()
    with pytest.raises(Unauthenticated):
        await Claims(set_of_one, found).verify(signed(headers={"kid": kid}))


@pytest.mark.parametrize("kid", [7, None, ["one"], {"a": 1}])
async def test_a_key_id_is_text(kid: Any) -> None:
    await refused(by_ed25519({"alg": "EdDSA", "kid": kid}))


@pytest.mark.parametrize("where", ["jku", "x5u", "jwk", "x5c"])
async def test_keys_that_a_token_brings_along_are_not_looked_at(where: str) -> None:
    with key_server() as attacker:
        attacker.keys = [jwk(ed_key(1), "evil")]
        brought = attacker.url if where in ("jku", "x5u") else jwk(ed_key(1), "evil")
        await refused(signed(ed_key(1), headers={where: brought}))
        assert attacker.asked == 0


@pytest.mark.parametrize(
    "times",
    [
        pytest.param({"exp": None}, id="no end"),
        pytest.param({"exp": int(time.time()) - 3600}, id="ended"),
        pytest.param({"exp": "soon"}, id="end in words"),
        pytest.param({"exp": True}, id="end is true"),
        pytest.param({"exp": 10**400}, id="end out of range"),
        pytest.param({"nbf": int(time.time()) + 3600}, id="not yet"),
        pytest.param({"iat": int(time.time()) + 3600}, id="not issued yet"),
        pytest.param({"nbf": "now"}, id="beginning in words"),
        pytest.param({"iat": "now"}, id="issue in words"),
    ],
)
async def test_a_token_has_its_time(times: dict[str, Any]) -> None:
    await refused(signed(**times))


async def test_clocks_may_differ_by_the_leeway() -> None:
    now = int(time.time())
    await verified(signed(exp=now - 20, nbf=now + 20, iat=now + 20))
    await refused(signed(exp=now - 40))


@pytest.mark.parametrize(
    "whose",
    [
        {"iss": None},
        {"iss": ISSUER[:-1]},
        {"iss": ISSUER + "x"},
        {"iss": [ISSUER]},
        {"iss": ""},
        {"aud": None},
        {"aud": "que"},
        {"aud": "other"},
        {"aud": []},
        {"aud": ["other"]},
        {"aud": {AUDIENCE: 1}},
    ],
    ids=str,
)
async def test_a_token_is_from_our_issuer_and_for_us(whose: dict[str, Any]) -> None:
    token = (
        signed(None, "EdDSA", **whose)
        if "iss" not in whose
        else by_ed25519({"alg": "EdDSA"}, **whose)
    )
    await refused(token)


async def test_a_token_may_be_for_others_too() -> None:
    await verified(signed(aud=["other", AUDIENCE]))


# ---- key sets ----


@pytest.fixture
def issuer() -> Iterator[KeyServer]:
    with key_server() as serving:
        serving.keys = [jwk(ed_key(), "one")]
        yield serving


def by_kid(kid: str, number: int = 0) -> str:
    return signed(ed_key(number), headers={"kid": kid})


async def test_a_fetched_set_verifies(issuer: KeyServer) -> None:
    wanted = options(jwks_url=issuer.url)
    keys = Keys(wanted)
    await keys.start()
    assert (await Claims(wanted, keys).verify(by_kid("one"))).caller.subject == "alice"
    assert (await Claims(wanted, keys).verify(signed())).caller.subject == "alice"


async def test_without_its_key_set_a_server_does_not_start(issuer: KeyServer) -> None:
    for wanted in (
        options(jwks_url="http://127.0.0.1:1/none"),
        options(jwks_file="/nowhere"),
    ):
        with pytest.raises(StartupError):
            await Keys(wanted).start()
    issuer.status = 500
    with pytest.raises(StartupError, match="500"):
        await Keys(options(jwks_url=issuer.url)).start()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys":1}', b'{"keys":[]}', b'{"keys":[{"kty":"oct","k":"AA"}]}']
)
async def test_what_is_no_key_set_is_refused(body: bytes, tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_bytes(body)
    with pytest.raises(StartupError):
        await Keys(options(jwks_file=str(file))).start()


async def test_a_key_that_contradicts_itself_is_left_out() -> None:
    listed = [
        jwk(ed_key(), "wrong algorithm", alg="HS256"),
        jwk(rsa_key(), "for encryption", use="enc"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        jwk(ed_key(), "good", alg="EdDSA", use="sig"),
        "nonsense",
        {"kty": "RSA", "n": "AA", "e": "AQAB", "kid": "tiny"},
    ]
    named, nameless = parse_set(json.dumps({"keys": listed}).encode(), None)
    assert (list(named), nameless) == (["good"], [])


async def test_no_redirect_is_followed(issuer: KeyServer) -> None:
    with key_server() as other:
        other.keys = issuer.keys
        issuer.status, issuer.location = 302, other.url
        with pytest.raises(StartupError, match="302"):
            await Keys(options(jwks_url=issuer.url)).start()
        assert other.asked == 0


async def test_unknown_key_ids_cause_one_fetch_a_minute(
    issuer: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = options(jwks_url=issuer.url)
    keys = Keys(wanted)
    await keys.start()
    rules = Claims(wanted, keys)
    for _ in range(20):
        with pytest.raises(Unauthenticated):
            await rules.verify(by_kid(uuid.uuid4().hex))
    assert issuer.asked == 1
    # A minute later a new key is found by the first token that names it.
    issuer.keys.append(jwk(ed_key(1), "two"))
    monkeypatch.setattr(keys_module, "_UNKNOWN_KEY_INTERVAL_S", -1.0)
    assert (await rules.verify(by_kid("two", 1))).caller.subject == "alice"
    assert (await rules.verify(by_kid("one"))).caller.subject == "alice"
    assert issuer.asked == 2


async def test_a_set_that_cannot_be_read_again_stays_for_a_day(
    issuer: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = options(jwks_url=issuer.url)
    keys = Keys(wanted)
    await keys.start()
    rules = Claims(wanted, keys)
    issuer.status = 503
    monkeypatch.setattr(keys_module, "_UNKNOWN_KEY_INTERVAL_S", -1.0)
    with pytest.raises(Unavailable):
        await rules.verify(by_kid("unknown"))
    assert (await rules.verify(by_kid("one"))).caller.subject == "alice"
    monkeypatch.setattr(keys_module, "_KEEP_S", -1.0)
    with pytest.raises(Unavailable):
        await rules.verify(by_kid("one"))


async def test_a_key_that_is_gone_verifies_nothing(
    issuer: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[int] = []
    wanted = options(jwks_url=issuer.url)
    keys = Keys(wanted, lambda: changes.append(1))
    await keys.start()
    rules = Claims(wanted, keys)
    issuer.keys = [jwk(ed_key(1), "two")]
    monkeypatch.setattr(keys_module, "_UNKNOWN_KEY_INTERVAL_S", -1.0)
    await rules.verify(by_kid("two", 1))
    with pytest.raises(Unauthenticated):
        await rules.verify(by_kid("one"))
    assert len(changes) == 2


async def test_two_configured_keys_are_good_while_both_are_listed() -> None:
    old, new = "Old" + SECRET, "New" + SECRET
    for secret in (old, new):
        await verified(signed(secret, "HS256"), options(secrets=(new, old)))
    await refused(signed(old, "HS256"), options(secrets=(new,)))


# ---- the configuration ----


def environment(**more: str) -> dict[str, str]:
    good = {"JWT_ISSUER": ISSUER, "JWT_AUDIENCE": AUDIENCE, "JWT_SECRET": SECRET}
    return {name: value for name, value in {**good, **more}.items() if value}


@pytest.mark.parametrize(
    "wrong",
    [
        {"JWT_SECRET": "short"},
        {"JWT_SECRET": "x" * 31},
        {"JWT_SECRET": "x" * 64},
        {"JWT_SECRET": "a-string-secret-at-least-256-bits-long"},
        {"JWT_SECRET": ""},
        {"JWT_ISSUER": ""},
        {"JWT_AUDIENCE": ""},
        {"JWT_ALGORITHM": "none"},
        {"JWT_ALGORITHM": "hs256"},
        {"JWT_CLOCK_SKEW": "-1"},
        {"JWT_CLOCK_SKEW": "86400"},
        {"JWT_JWKS_URL": "http://issuer.example/jwks"},
        {"JWT_JWKS_URL": "file:///etc/passwd"},
        {"JWT_JWKS_URL": "ftp://issuer.example/"},
        {"JWT_PUBLIC_KEY": "/nowhere"},
        {"JWT_ROLE_ADMIN": "read-only"},
    ],
    ids=str,
)
def test_a_configuration_that_is_not_safe_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(StartupError) as caught:
        auth_options("jwt", environment(**wrong), open_metrics=False)
    assert wrong.get("JWT_SECRET", "?") not in caught.value.message or wrong["JWT_SECRET"] == ""


def test_a_public_key_may_be_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(pem(ed_key()))
    for value in (pem(ed_key()), pem(ed_key()).replace("\n", "\\n"), str(file)):
        found = jwt_options(environment(JWT_SECRET="", JWT_PUBLIC_KEY=value))
        assert Keys(found)


def test_a_key_must_be_one_for_the_algorithm() -> None:
    for wanted in (
        options(public_key=pem(rsa_key()), algorithm="EdDSA"),
        options(secrets=(SECRET,), algorithm="RS256"),
        options(public_key="nonsense"),
        options(public_key="-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"),
    ):
        with pytest.raises(StartupError):
            Keys(wanted)


def test_the_original_names_turn_it_on() -> None:
    found = auth_options("none", environment(JWT_ENABLED="true"), open_metrics=False)
    assert found.is_on and found.jwt is not None
    assert SECRET not in repr(found)
    assert not auth_options("none", environment(), open_metrics=False).is_on


def test_claims_for_tests_are_good() -> None:
    assert claims(role=None).keys() == {"iss", "aud", "sub", "exp", "iat"}

"""An issuer of JWTs with real keys, and one that lies."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from queen.server.auth.options import JwtOptions

ISSUER = "https://issuer.example"
AUDIENCE = "queen"
SECRET = "Zk3vTq9Lx1mWb7Rd5Yp0Hs8Jc2Nf6GaUe4Qi"  # noqa: S105 (made for these tests)


Private = rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
_ed_keys = [ed25519.Ed25519PrivateKey.generate() for _ in range(2)]


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def ed_key(number: int = 0) -> ed25519.Ed25519PrivateKey:
    return _ed_keys[number]


def pem(key: Private) -> str:
    public = key.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def jwk(key: Private, kid: str, **more: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": kid, **more}


def options(**more: Any) -> JwtOptions:
    return JwtOptions(**{"issuer": ISSUER, "audience": AUDIENCE, **more})


def claims(**more: Any) -> dict[str, Any]:
    """Good claims; a value of None leaves one out."""
    now = int(time.time())
    wanted = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "exp": now + 600,
        "iat": now,
        "role": "admin",
        **more,
    }
    return {name: value for name, value in wanted.items() if value is not None}


def signed(
    key: Any = None, algorithm: str = "EdDSA", headers: dict[str, Any] | None = None, **more: Any
) -> str:
    """Return a token, by the Ed25519 key unless told otherwise."""
    return jwt.encode(claims(**more), key or ed_key(), algorithm, headers)


def part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def forged(header: dict[str, Any], secret: bytes | None = None, **more: Any) -> str:
    """Return a token with any header, unsigned or signed with HMAC."""
    text = f"{part(header)}.{part(claims(**more))}"
    if secret is None:
        return f"{text}."
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


def by_ed25519(header: dict[str, Any], **more: Any) -> str:
    """Return a token with any header, rightly signed."""
    text = f"{part(header)}.{part(claims(**more))}"
    return f"{text}.{part(ed_key().sign(text.encode()))}"


class KeyServer:
    """Answers with a key set over HTTP, and counts how often it was asked."""

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.status = 200
        self.location = ""
        self.asked = 0
        self.url = ""

    def body(self) -> bytes:
        return json.dumps({"keys": self.keys}).encode()


@contextmanager
def key_server() -> Iterator[KeyServer]:
    serving = KeyServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            serving.asked += 1
            body = serving.body()
            self.send_response(serving.status)
            self.send_header("content-length", str(len(body)))
            if serving.location:
                self.send_header("location", serving.location)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving.url = f"http://127.0.0.1:{server.server_port}/jwks"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield serving
        server.shutdown()
        thread.join()

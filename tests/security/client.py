"""A client that shows a token with every request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.api import Answer, Api
from tests.conftest import ServerProcess

TOKEN = re.compile(r"queen_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")


class Client(Api):
    def __init__(self, url: str, token: str | None) -> None:
        super().__init__(url)
        self.token = token

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(
        self,
        method: str,
        path: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        shown = {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}
        super().send(method, path, body, {**shown, **(headers or {})})

    def twin(self) -> Client:
        return Client(self.url, self.token)

    def create_token(self, **wanted: Any) -> Answer:
        return self.call("POST", "/api/v1/tokens", wanted)


class Guarded:
    """The guarded server, and tokens for it."""

    def __init__(self, running: ServerProcess, log: Path, dsn: str) -> None:
        self.running = running
        self.url = running.url
        self.log = log
        self.dsn = dsn
        (line,) = running.said
        found = TOKEN.search(line)
        assert found is not None
        self.first_token = found.group()
        self._tokens: dict[tuple[str, tuple[str, ...]], str] = {}

    def token(self, role: str, *namespaces: str) -> str:
        key = (role, namespaces)
        if key not in self._tokens:
            with Client(self.url, self.first_token) as first:
                wanted = {"name": f"{role}-{'-'.join(namespaces)}", "role": role}
                answer = first.create_token(**wanted, namespaces=list(namespaces) or None)
                assert answer.status == 201, answer.raw
                self._tokens[key] = answer.json["token"]
        return self._tokens[key]

"""How tests speak to a sink: a run of a query, its stages and its commits."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import quote, urlencode

from queen.core.frame import CONTENT_TYPE, encode_frame
from tests.api import Answer, Api


def frame(queue: str, numbers: range, partition: str = "p", prefix: str = "t") -> bytes:
    """Return numbered messages as one frame; a number is also its transaction id."""
    ids = [f"{prefix}{n}" for n in numbers]
    return encode_frame(queue, partition, ids, [b'{"n":%d}' % n for n in numbers])


class Sink:
    """One run of one query."""

    def __init__(self, api: Api, query: str | None = None, run: str | None = None) -> None:
        self._api = api
        self.query = query or f"query-{uuid.uuid4().hex}"
        self.run = run or uuid.uuid4().hex
        self.epoch = 1

    def call(self, verb: str, body: Any, **more: Any) -> Answer:
        path = f"/api/v1/sink/{quote(self.query, safe='')}/{verb}"
        return self._api.call("POST", f"{path}?{urlencode(more)}" if more else path, body)

    def open(self, **more: Any) -> Answer:
        answer = self.call("open", {"run": self.run, **more})
        if answer.status == 200:
            self.epoch = answer.json["epoch"]
        return answer

    def stage(self, *frames: bytes, batch: int = 0, task: int = 0, **more: Any) -> Answer:
        query = {"epoch": self.epoch, "run": self.run, "batch": batch, "task": task, **more}
        path = f"/api/v1/sink/{quote(self.query, safe='')}/stage?{urlencode(query)}"
        return self._api.call("POST", path, b"".join(frames), {"Content-Type": CONTENT_TYPE})

    def commit(self, *stages: tuple[int, int] | tuple[int, int, int], batch: int = 0) -> Answer:
        """Publish stages: (task, messages), or (task, messages, attempt)."""
        return self.call("commit", self._body(stages, batch))

    def abort(self, *stages: tuple[int, int] | tuple[int, int, int], batch: int = 0) -> Answer:
        return self.call("abort", self._body(stages, batch))

    def _body(self, stages: Any, batch: int) -> dict[str, Any]:
        named = [
            {"task": task, "messages": messages, "attempt": attempt[0] if attempt else 0}
            for task, messages, *attempt in stages
        ]
        return {"run": self.run, "epoch": self.epoch, "batch": batch, "stages": named}

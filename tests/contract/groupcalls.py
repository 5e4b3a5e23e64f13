"""Calls about consumer groups."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from tests.api import Answer, Api
from tests.contract.conftest import refresh

ROOT = "/api/v1/consumer-groups"


def path_of(group: str, *parts: str) -> str:
    return "/".join([ROOT, *(quote(part, safe="") for part in (group, *parts))])


def entries(api: Api, queue: str) -> dict[str, Any]:
    """The groups of a queue, by name, counted now."""
    refresh(api)
    answer = api.call("GET", ROOT)
    assert answer.status == 200, answer.raw
    return {one["name"]: one for one in answer.json if one["queueName"] == queue}


def detail(api: Api, group: str, queue: str, **query: Any) -> dict[str, Any]:
    """Where a group stands, by partition."""
    answer = api.call("GET", f"{path_of(group)}?{urlencode({'queue': queue, **query})}")
    assert answer.status == 200, answer.raw
    return {one["partition"]: one for one in answer.json[queue]["partitions"]}


def seek(api: Api, group: str, queue: str, partition: str | None = None, **body: Any) -> Answer:
    parts = ["queues", queue, *(["partitions", partition] if partition else []), "seek"]
    return api.call("POST", path_of(group, *parts), body)


def moved(api: Api, group: str, queue: str, partition: str | None = None, **body: Any) -> Any:
    """Seek, and return what it says."""
    answer = seek(api, group, queue, partition, **body)
    assert answer.status == 200, answer.raw
    return answer.json


def pause(api: Api, group: str, *queue: str) -> Answer:
    return api.call("POST", path_of(group, *(("queues", *queue) if queue else ()), "pause"))


def resume(api: Api, group: str, *queue: str) -> Answer:
    return api.call("POST", path_of(group, *(("queues", *queue) if queue else ()), "resume"))


def delete(api: Api, group: str, *queue: str, **query: Any) -> Answer:
    path = path_of(group, *(("queues", *queue) if queue else ()))
    return api.call("DELETE", f"{path}?{urlencode(query)}")


def eventually(holds: Callable[[], bool], within_s: float = 20) -> bool:
    """Whether something that another server must hear of comes true."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
    return True

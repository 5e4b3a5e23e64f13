"""Streams with the verbs of Redis: in memory, on a Redis server, or on Queen's own log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queen.streambroker.interface import Capability, StreamBroker
from queen.streambroker.local import LocalStreamBroker
from queen.streambroker.records import (
    ConsumerGroupInfo,
    ConsumerInfo,
    DeadLetterOrigin,
    StreamMessage,
)
from queen.streambroker.redis_backend import RedisStreamBroker
from queen.streambroker.sync import SyncStreamBroker
from queen.streambroker.urls import (
    load_durable,
    load_http,
    stream_broker_from_url,
    sync_stream_broker_from_url,
)

if TYPE_CHECKING:
    from queen.service.entries.standalone import DurableStreamBroker
    from queen.streambroker.http_client import HttpStreamBroker

__all__ = [
    "Capability",
    "ConsumerGroupInfo",
    "ConsumerInfo",
    "DeadLetterOrigin",
    "DurableStreamBroker",
    "HttpStreamBroker",
    "LocalStreamBroker",
    "RedisStreamBroker",
    "StreamBroker",
    "StreamMessage",
    "SyncStreamBroker",
    "stream_broker_from_url",
    "sync_stream_broker_from_url",
]

if not TYPE_CHECKING:
    # Hidden from type checkers: to them every name would exist.
    def __getattr__(name: str) -> Any:
        """Load what stands on a server, or on the transport to one, when it is asked for."""
        if name == "DurableStreamBroker":
            return load_durable()
        if name == "HttpStreamBroker":
            return load_http()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Streams with the verbs of Redis: in memory, on a Redis server, or on Queen's own log."""

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
from queen.streambroker.urls import stream_broker_from_url, sync_stream_broker_from_url

__all__ = [
    "Capability",
    "ConsumerGroupInfo",
    "ConsumerInfo",
    "DeadLetterOrigin",
    "LocalStreamBroker",
    "RedisStreamBroker",
    "StreamBroker",
    "StreamMessage",
    "SyncStreamBroker",
    "stream_broker_from_url",
    "sync_stream_broker_from_url",
]

"""Where the streams are that HTTP and the RESP port serve.

They are on the log, unless a setting says otherwise: `memory`, or the URL of a Redis server. Those
two know no namespaces, so a caller that is limited to some has no streams there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queen.errors import BadRequest, NotFound, StartupError
from queen.server.auth.access import Caller
from queen.service.broker import Broker
from queen.service.entries.standalone import DURABLE_CAPABILITIES
from queen.streambroker.answers import code_of
from queen.streambroker.commands import ALL_COMMANDS, CommandStreamBroker
from queen.streambroker.interface import StreamBroker
from queen.streambroker.replies import Executor, Failure, Reply
from queen.streambroker.urls import stream_broker_from_url

DURABLE = "durable"
_MEMORY = "memory"
_NO_STREAMS = "there are no streams in your namespaces"
_SCHEMES = ("memory", "redis", "rediss", "unix")


class StreamBackend(Protocol):
    def broker_for(self, caller: Caller) -> StreamBroker:
        """Return the verbs, on behalf of a caller."""
        ...

    def executor_for(self, caller: Caller) -> Executor:
        """Return who runs commands, on behalf of a caller."""
        ...

    async def close(self) -> None: ...


class LogBackend:
    """Streams on the log of the broker."""

    def __init__(self, broker: Broker) -> None:
        self._entries = broker.entries

    def broker_for(self, caller: Caller) -> StreamBroker:
        executor = self.executor_for(caller)
        if caller.namespaces is not None:
            executor = _Discreet(executor)
        return CommandStreamBroker(
            executor, commands=ALL_COMMANDS, capabilities=DURABLE_CAPABILITIES
        )

    def executor_for(self, caller: Caller) -> Executor:
        return self._entries.executor_for(caller)

    async def close(self) -> None:
        """They end with the broker."""


class _Discreet:
    """For HTTP, where what a caller may not see does not exist for it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def execute(
        self, commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        replies = await self._executor.execute(commands, is_atomic=is_atomic)
        if any(isinstance(reply, Failure) and code_of(reply) == "NOPERM" for reply in replies):
            raise NotFound("no such stream")
        return replies


class OtherBackend:
    """Streams in memory or on a Redis server, the same for all callers."""

    def __init__(self, streams: CommandStreamBroker) -> None:
        self._streams = streams

    def broker_for(self, caller: Caller) -> StreamBroker:
        if caller.namespaces is not None:
            raise NotFound(_NO_STREAMS)
        return self._streams

    def executor_for(self, caller: Caller) -> Executor:
        return self._streams.executor if caller.namespaces is None else _NoStreams()

    async def close(self) -> None:
        await self._streams.close()


class _NoStreams:
    async def execute(
        self, _commands: Sequence[Sequence[bytes]], *, is_atomic: bool = False
    ) -> list[Reply]:
        raise NotFound(_NO_STREAMS)


def check_stream_backend(setting: str, workers: int = 1) -> None:
    """Raise `StartupError` when nothing can be served as a setting says."""
    if setting in ("", DURABLE):
        return
    scheme = setting.partition(":")[0]
    if scheme not in _SCHEMES:
        raise StartupError(
            f"the stream backend {setting!r} is not known: {DURABLE}, {_MEMORY}, or redis://..."
        )
    if scheme == _MEMORY and workers > 1:
        raise StartupError("streams in memory belong to one process: serve with --workers 1")
    try:
        _other_streams(setting)
    except (BadRequest, ImportError) as error:
        raise StartupError(f"the stream backend cannot be used: {error}") from error


def stream_backend(setting: str, broker: Broker) -> StreamBackend:
    """Return the backend that a setting names."""
    check_stream_backend(setting)
    if setting in ("", DURABLE):
        return LogBackend(broker)
    return OtherBackend(_other_streams(setting))


def _other_streams(setting: str) -> CommandStreamBroker:
    """Return the streams that a setting names; nobody is asked for them yet."""
    streams = stream_broker_from_url("memory://" if setting == _MEMORY else setting)
    assert isinstance(streams, CommandStreamBroker)
    return streams

"""The streams that commands see: replicas that follow the log.

A command that needs what is not in memory stops before it has changed anything, and says what
it needs: it is brought, and the command runs again.
"""

from __future__ import annotations

from queen.service.entries.replicas import Replica, Replicas, name_of
from queen.service.scope import Viewer
from queen.streambroker.engine.keyspace import Keyspace
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure


class StreamMissing(Exception):
    """A stream is not in memory."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.key = key


class BodyMissing(Exception):
    """The body of an entry is not in memory, and is to be written again."""

    def __init__(self, stream: Stream, entry_id: int) -> None:
        super().__init__(entry_id)
        self.stream = stream
        self.entry_id = entry_id


class NamesMissing(Exception):
    """Nobody has asked yet which streams there are."""


class LogKeyspace(Keyspace):
    def __init__(self, replicas: Replicas) -> None:
        super().__init__()
        self._replicas = replicas
        # What the commands since the last commit have looked at.
        self.touched: dict[bytes, Replica] = {}
        # On whose behalf a command runs.
        self.viewer: Viewer | None = None
        # The streams that are stored, for those who ask for all of them.
        self.stored_names: list[bytes] | None = None

    def begin(self) -> None:
        """Forget what was noted about the commands before."""
        self.touched.clear()
        self.ready.clear()
        self.stored_names = None

    def stream(self, key: bytes, now: int) -> Stream | None:
        stream = self._replica(key).stream
        if stream.expires_at and stream.expires_at <= now and stream.is_alive:
            self.drop(key)
        return stream if stream.is_alive else None

    def create(self, key: bytes) -> Stream:
        stream = self._replica(key).stream
        stream.begin()
        return stream

    def drop(self, key: bytes) -> None:
        self._replica(key).stream.reset()
        self.ready.add(key)

    def names(self, now: int) -> list[bytes]:
        if self.stored_names is None:
            raise NamesMissing
        here = {key: replica.stream.is_alive for key, replica in self.touched.items()}
        names = {name for name in self.stored_names if here.get(name, True)}
        return [*names, *(key for key, is_alive in here.items() if is_alive and key not in names)]

    def fields_in_memory(self, stream: Stream, entry_id: int) -> list[bytes]:
        place = stream.entries.place(entry_id)
        assert place is not None
        body = place.chunk.bodies[place.at]
        if body is None:
            raise BodyMissing(stream, entry_id)
        return body

    def _replica(self, key: bytes) -> Replica:
        replica = self._replicas.by_key.get(key)
        if replica is None:
            name_of(key)
            raise StreamMissing(key)
        if self.viewer is not None and not self.viewer.sees(replica.namespace):
            raise Failure("NOPERM No permissions to access a key")
        self.touched[key] = replica
        return replica

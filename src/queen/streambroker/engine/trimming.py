"""Trimming: by length or by the smallest id, exactly or by whole chunks."""

from __future__ import annotations

from queen.streambroker.engine.arguments import SYNTAX, parse_integer
from queen.streambroker.engine.ids import MAX_ID, parse_id
from queen.streambroker.engine.keyspace import Arguments
from queen.streambroker.engine.references import REFERENCES, drop_references, is_needed
from queen.streambroker.engine.state.entries import CHUNK_ENTRIES
from queen.streambroker.engine.state.stream import Stream
from queen.streambroker.replies import Failure

_BOTH = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
_DEFAULT_LIMIT = 100 * CHUNK_ENTRIES


class Trimming:
    """What a command wants trimmed."""

    __slots__ = ("is_approximate", "is_limited", "limit", "max_length", "min_id", "references")

    def __init__(self) -> None:
        self.max_length: int | None = None
        self.min_id: int | None = None
        self.is_approximate = False
        # At most so many entries; 0: as many as there are.
        self.limit = 0
        self.is_limited = False
        self.references = b"KEEPREF"

    @property
    def is_wanted(self) -> bool:
        return self.max_length is not None or self.min_id is not None

    def take(self, command: Arguments, at: int) -> int:
        """Read the option that stands at a place; returns how many arguments it takes, 0 if it
        is none of these."""
        more = len(command) - 1 - at
        option = command[at].upper()
        if option in REFERENCES:
            self.references = option
            return 1
        if option in {b"MAXLEN", b"MINID"} and more:
            return self._take_strategy(command, at, option, more)
        if option == b"LIMIT" and more:
            self.limit = parse_integer(command[at + 1])
            if self.limit < 0:
                raise Failure("ERR The LIMIT argument must be >= 0.")
            self.is_limited = True
            return 2
        return 0

    def _take_strategy(self, command: Arguments, at: int, option: bytes, more: int) -> int:
        if self.is_wanted:
            raise Failure(_BOTH)
        taken = 2
        if more >= 2 and command[at + 1] in {b"~", b"="}:
            self.is_approximate = command[at + 1] == b"~"
            taken = 3
        value = command[at + taken - 1]
        if option == b"MINID":
            self.min_id = parse_id(value)
        else:
            self.max_length = parse_integer(value)
            if self.max_length < 0:
                raise Failure("ERR The MAXLEN argument must be >= 0.")
        return taken

    def check(self) -> None:
        if self.limit and not self.is_wanted:
            raise Failure(
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
            )
        if self.is_limited and not self.is_approximate:
            raise Failure("ERR syntax error, LIMIT cannot be used without the special ~ option")
        if self.is_approximate and not self.is_limited:
            self.limit = _DEFAULT_LIMIT

    def do(self, stream: Stream) -> int:
        """Trim; returns how many entries went."""
        if not self.is_wanted:
            return 0
        if self.references == b"ACKED":
            return self._do_acked(stream)
        chunks, more = self._extent(stream)
        if not chunks and not more:
            return 0
        before = stream.entries.length
        if self.references == b"DELREF":
            count = sum(chunk.live for chunk in stream.entries.chunks[:chunks]) + more
            places = stream.entries.between(0, MAX_ID)
            drop_references(stream, [next(places).entry_id for _ in range(count)])
        stream.trim(chunks, more)
        return before - stream.entries.length

    def _extent(self, stream: Stream) -> tuple[int, int]:
        """Return how many whole chunks go, and how many entries behind them."""
        length, removed, chunks = stream.entries.length, 0, 0
        for chunk in stream.entries.chunks:
            if self.max_length is not None and length <= self.max_length:
                return chunks, 0
            if self.limit and removed + chunk.live > self.limit:
                return chunks, 0
            if not self._takes_all(length - chunk.live, chunk.ids[-1]):
                break
            length -= chunk.live
            removed += chunk.live
            chunks += 1
        if self.is_approximate or chunks == len(stream.entries.chunks):
            return chunks, 0
        if self.max_length is not None:
            return chunks, max(0, length - self.max_length)
        assert self.min_id is not None
        first = stream.entries.chunks[chunks].ids[0]
        return chunks, sum(1 for _ in stream.entries.between(first, self.min_id - 1))

    def _takes_all(self, length_after: int, last_id: int) -> bool:
        if self.max_length is not None:
            return length_after >= self.max_length
        return self.min_id is not None and last_id < self.min_id

    def _do_acked(self, stream: Stream) -> int:
        """Remove only what no group needs any more; the rest stays, however much there is."""
        excess = stream.entries.length - (self.max_length or 0)
        removed: list[int] = []
        for place in stream.entries.between(0, MAX_ID):
            if self.limit and len(removed) >= self.limit:
                break
            if self.max_length is not None and len(removed) >= excess:
                break
            if self.min_id is not None and place.entry_id >= self.min_id:
                break
            if not is_needed(stream, place.entry_id):
                removed.append(place.entry_id)
        if removed:
            stream.trim_these(removed)
        return len(removed)


def parse_trim(command: Arguments) -> Trimming:
    """Read the options of a trim on its own."""
    trimming, at = Trimming(), 2
    while at < len(command):
        taken = trimming.take(command, at)
        if not taken:
            raise SYNTAX
        at += taken
    if not trimming.is_wanted and not trimming.limit:
        raise Failure("ERR syntax error, XTRIM must be called with a trimming strategy")
    trimming.check()
    return trimming

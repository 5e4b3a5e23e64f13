"""What producers have added lately, so that an add that is repeated adds nothing."""

from __future__ import annotations

DURATION_S = 100
SIZE = 100


class ProducerMemory:
    """The last tokens of each producer with the ids that they became, for a while."""

    __slots__ = ("_producers", "added", "duplicates", "duration_s", "size")

    def __init__(self, duration_s: int = DURATION_S, size: int = SIZE) -> None:
        self.duration_s = duration_s
        self.size = size
        # How many tokens were added, and how often one came again.
        self.added = 0
        self.duplicates = 0
        self._producers: dict[bytes, dict[bytes, tuple[int, int]]] = {}

    def change(self, duration_s: int, size: int) -> None:
        """Remember otherwise from now on; what was remembered so far is forgotten."""
        self.duration_s, self.size = duration_s, size
        self._producers.clear()

    def recall(self, producer: bytes, token: bytes, now: int) -> int | None:
        """Return the id that a token became, if it is remembered."""
        known = self._producers.get(producer, {}).get(token)
        if known is None or now - known[1] > self.duration_s * 1000:
            return None
        self.duplicates += 1
        return known[0]

    def remember(self, producer: bytes, token: bytes, entry_id: int, now: int) -> None:
        self.added += 1
        tokens = self._producers.setdefault(producer, {})
        tokens.pop(token, None)
        tokens[token] = (entry_id, now)
        while len(tokens) > self.size or self._is_old(tokens, now):
            del tokens[next(iter(tokens))]
        self._forget_idle(now)

    def _is_old(self, tokens: dict[bytes, tuple[int, int]], now: int) -> bool:
        return now - next(iter(tokens.values()))[1] > self.duration_s * 1000

    def _forget_idle(self, now: int) -> None:
        """Forget the producer that came first, if all that it added is old: they come in turn."""
        name = next(iter(self._producers))
        tokens = self._producers.pop(name)
        if now - next(reversed(tokens.values()))[1] <= self.duration_s * 1000:
            self._producers[name] = tokens

    @property
    def producers(self) -> int:
        return len(self._producers)

    @property
    def tokens(self) -> int:
        return sum(map(len, self._producers.values()))

    def rows(self) -> list[tuple[bytes, bytes, int, int]]:
        return [
            (producer, token, entry_id, at)
            for producer, tokens in self._producers.items()
            for token, (entry_id, at) in tokens.items()
        ]

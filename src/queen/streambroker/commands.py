"""The verbs of a stream broker as commands of Redis, for whoever runs them.

There is one translation for memory, for a Redis server and for the log. It asks once which commands
are known, and does without where they are not:

nack            XNACK; else XCLAIM to a consumer that stands for nobody, and that is not shown
claiming read   XREADGROUP CLAIM; else XAUTOCLAIM, then XREADGROUP, again each `claim_idle_ms`
delivery limit  XGROUP SETLIMIT; else this object moves what it claims and what was delivered too
                often, with XADD and XACK in one step
redrive         XREDRIVE; else XADD and XDEL in one step each; two at once may both add an entry
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from queen.errors import BadRequest, NotFound
from queen.streambroker import checks
from queen.streambroker.answers import (
    as_int,
    as_list,
    as_mapping,
    as_text,
    code_of,
    entries_read,
    entry_parts,
    error_of,
    good,
    is_missing,
    message_of,
    messages_of,
    pending_rows,
)
from queen.streambroker.claiming import Claims
from queen.streambroker.entry_data import fields_of, split_origin
from queen.streambroker.interface import (
    DEAD_LETTERS,
    DEFAULT_PRODUCER,
    Capability,
    StreamBroker,
)
from queen.streambroker.records import ConsumerGroupInfo, ConsumerInfo, StreamMessage
from queen.streambroker.replies import Executor, Failure, Reply

# Commands that tell servers apart. Of Redis 8.8, of Redis 8.6, and our own.
NACK, SETTINGS, REDRIVE = b"XNACK", b"XCFGSET", b"XREDRIVE"
ALL_COMMANDS = frozenset({NACK, SETTINGS, REDRIVE})

_PAGE = 1000
# Delivered so long ago that any claim takes it, and still after 1970.
_LONG_IDLE_MS = 10 * 366 * 24 * 3600 * 1000
_OURS = frozenset({Capability.KEY_ORDER, Capability.DELAYED_NACK, Capability.SHARED_DELIVERY_LIMIT})


class CommandStreamBroker(StreamBroker):
    """A stream broker on anything that runs commands."""

    def __init__(
        self,
        executor: Executor,
        *,
        commands: frozenset[bytes] | None = None,
        capabilities: frozenset[Capability] = frozenset(),
    ) -> None:
        """`commands` are those of ALL_COMMANDS that are known; without, the executor is asked.
        `capabilities` are those that do not show in commands."""
        # For commands that no verb sends.
        self.executor = executor
        self._commands = commands
        self._other_capabilities = capabilities
        self._claims = Claims(executor)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._other_capabilities | _capabilities_of(self._commands or frozenset())

    async def open(self) -> None:
        await self._known()

    async def _known(self) -> frozenset[bytes]:
        """Return which of the commands that not everybody has are known."""
        if self._commands is None:
            names = sorted(ALL_COMMANDS)
            reply = await self._ask(b"COMMAND", b"INFO", *names, may_fail=True)
            # Whoever does not say is asked for nothing new.
            infos = [None] * len(names) if isinstance(reply, Failure) else as_list(reply)
            known = (name for name, info in zip(names, infos, strict=True) if as_list(info))
            self._commands = frozenset(known)
        return self._commands

    async def _ask(self, *command: bytes, may_fail: bool = False) -> Reply:
        """Run one command and return its reply, a failure only if it may fail."""
        (reply,) = await self.executor.execute([command])
        return reply if may_fail else good(reply)

    async def _ask_group(self, stream: bytes, *command: bytes) -> Reply:
        """Run a command that needs a stream or a group of it; a failure is `NotFound` when there
        is no such stream or group, whatever its words are."""
        exists, reply = await self.executor.execute([(b"EXISTS", stream), command], is_atomic=True)
        if isinstance(reply, Failure) and (exists == 0 or is_missing(reply)):
            raise NotFound(f"no such stream or group: {reply.text}")
        return good(reply)

    # Entries

    async def xadd(
        self,
        stream: str,
        data: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        producer: str = DEFAULT_PRODUCER,
        max_length: int | None = None,
    ) -> str:
        name = checks.name_bytes("stream", stream)
        options: list[bytes] = []
        if key is not None:
            options += [b"KEY", checks.name_bytes("key", key)]
            await self._require(Capability.KEY_ORDER, "key")
        if idempotency_key is not None:
            repeat = checks.name_bytes("idempotency_key", idempotency_key)
            options += [b"IDMP", checks.name_bytes("producer", producer), repeat]
            await self._require(Capability.IDEMPOTENT_ADD, "idempotency_key")
        if max_length is not None:
            options += [b"MAXLEN", b"%d" % checks.whole_number("max_length", max_length, 1)]
        return as_text(await self._ask(b"XADD", name, *options, b"*", *fields_of(data)))

    async def _require(self, capability: Capability, argument: str) -> None:
        await self._known()
        if capability not in self.capabilities:
            raise BadRequest(f"this server cannot add with {argument}: it lacks {capability.value}")

    async def xlen(self, stream: str) -> int:
        return as_int(await self._ask(b"XLEN", checks.name_bytes("stream", stream)))

    async def xrange(
        self, stream: str, min_id: str = "-", max_id: str = "+", count: int = 0
    ) -> list[StreamMessage]:
        name = checks.name_bytes("stream", stream)
        bounds = checks.bound_bytes("min_id", min_id), checks.bound_bytes("max_id", max_id)
        limit = [b"COUNT", b"%d" % count] if checks.whole_number("count", count) else []
        return messages_of(as_list(await self._ask(b"XRANGE", name, *bounds, *limit)))

    async def xdel(self, stream: str, ids: Sequence[str]) -> int:
        name, entry_ids = checks.name_bytes("stream", stream), checks.ids_bytes(ids)
        return as_int(await self._ask(b"XDEL", name, *entry_ids)) if entry_ids else 0

    async def xtrim(self, stream: str, max_length: int) -> int:
        name = checks.name_bytes("stream", stream)
        length = b"%d" % checks.whole_number("max_length", max_length)
        return as_int(await self._ask(b"XTRIM", name, b"MAXLEN", length))

    async def scan_streams(self, pattern: str = "*") -> list[str]:
        """Streams whose names are no UTF-8 are left out: no verb could name them."""
        glob = checks.name_bytes("pattern", pattern)
        names: set[bytes] = set()
        cursor = b"0"
        while True:
            options = (b"MATCH", glob, b"COUNT", b"%d" % _PAGE, b"TYPE", b"stream")
            cursor_reply, page = as_list(await self._ask(b"SCAN", cursor, *options))
            names.update(cast("list[bytes]", as_list(page)))
            cursor = cast("bytes", cursor_reply)
            if cursor == b"0":
                return sorted(name.decode() for name in names if _is_text(name))

    # Groups

    async def create_group(
        self, stream: str, group: str, start_id: str = "$", *, strict: bool = False
    ) -> None:
        name, group_name = _names(stream, group)
        start = checks.start_bytes(start_id)
        reply = await self._ask(
            b"XGROUP", b"CREATE", name, group_name, start, b"MKSTREAM", may_fail=True
        )
        if isinstance(reply, Failure) and (strict or code_of(reply) != "BUSYGROUP"):
            raise error_of(reply)

    async def set_group_id(self, stream: str, group: str, start_id: str) -> None:
        name, group_name = _names(stream, group)
        start = checks.start_bytes(start_id)
        await self._ask_group(name, b"XGROUP", b"SETID", name, group_name, start)

    async def delete_group(self, stream: str, group: str) -> None:
        name, group_name = _names(stream, group)
        self._claims.set_limit(name, group_name, None)
        try:
            await self._ask_group(name, b"XGROUP", b"DESTROY", name, group_name)
        except NotFound:
            return

    async def get_group_info(self, stream: str) -> list[ConsumerGroupInfo]:
        name = checks.name_bytes("stream", stream)
        try:
            groups = as_list(await self._ask_group(name, b"XINFO", b"GROUPS", name))
        except NotFound:
            return []
        return await self._group_infos(name, [as_mapping(group) for group in groups])

    async def get_stream_group_info(self, stream: str, group: str) -> ConsumerGroupInfo | None:
        name, group_name = _names(stream, group)
        try:
            groups = as_list(await self._ask_group(name, b"XINFO", b"GROUPS", name))
        except NotFound:
            return None
        mappings = [as_mapping(each) for each in groups]
        wanted = [mapping for mapping in mappings if mapping["name"] == group_name]
        infos = await self._group_infos(name, wanted)
        return infos[0] if infos else None

    async def _group_infos(
        self, stream: bytes, groups: list[dict[str, Reply]]
    ) -> list[ConsumerGroupInfo]:
        """Return groups with their consumers, without those that were deleted meanwhile."""
        if not groups:
            return []
        names = [cast("bytes", group["name"]) for group in groups]
        replies = await self.executor.execute(
            [(b"XINFO", b"CONSUMERS", stream, name) for name in names]
        )
        now = time.time()
        infos = []
        for group, consumers in zip(groups, replies, strict=True):
            if isinstance(consumers, Failure):
                continue
            infos.append(
                ConsumerGroupInfo(
                    name=as_text(group["name"]),
                    consumers=_consumer_infos(consumers, now),
                    last_delivered_id=as_text(group["last-delivered-id"]),
                    total_pending=as_int(group["pending"]),
                    lag=await self._lag(stream, group),
                )
            )
        return infos

    async def _lag(self, stream: bytes, group: dict[str, Reply]) -> int:
        """Return how many entries come after the last one delivered; count them when the server
        has lost count, as Redis does when entries were deleted."""
        lag = group.get("lag")
        if lag is not None:
            return as_int(lag)
        counted, after = 0, cast("bytes", group["last-delivered-id"])
        while True:
            page = as_list(
                await self._ask(b"XRANGE", stream, b"(" + after, b"+", b"COUNT", b"%d" % _PAGE)
            )
            counted += len(page)
            if len(page) < _PAGE:
                return counted
            after = entry_parts(page[-1])[0]

    async def delete_consumer(
        self, stream: str, group: str, consumer: str, *, keep_pending: bool = True
    ) -> int:
        """On a server that cannot do it in one step, what the consumer reads while it is being
        deleted is lost to the group."""
        name, group_name = _names(stream, group)
        consumer_name = checks.consumer_bytes(consumer)
        deletion = [b"XGROUP", b"DELCONSUMER", name, group_name, consumer_name]
        if keep_pending and REDRIVE not in await self._known():
            return await self._release_and_delete(deletion)
        if keep_pending:
            deletion.append(b"KEEPPENDING")
        try:
            return as_int(await self._ask_group(name, *deletion))
        except NotFound:
            return 0

    async def _release_and_delete(self, deletion: list[bytes]) -> int:
        """Give back what a consumer has, page by page, the last one together with its deletion."""
        name, group, consumer = deletion[2:]
        had, start = 0, b"-"
        while True:
            listing = (b"XPENDING", name, group, start, b"+", b"%d" % _PAGE, consumer)
            reply = await self._ask(*listing, may_fail=True)
            if is_missing(reply):
                return 0
            entry_ids = [row.entry_id for row in pending_rows(reply)]
            had += len(entry_ids)
            release = await self._release_command(name, group, entry_ids, 0)
            if len(entry_ids) < _PAGE:
                break
            await self._ask(*release)
            start = b"(" + entry_ids[-1]
        commands = [release, deletion] if entry_ids else [deletion]
        replies = await self.executor.execute(commands, is_atomic=True)
        return had + (0 if is_missing(replies[-1]) else as_int(replies[-1]))

    # Reading

    async def xreadgroup(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int = 1,
        block_ms: int | None = 0,
        *,
        claim_idle_ms: int | None = None,
        no_ack: bool = False,
        history_after: str | None = None,
    ) -> list[StreamMessage]:
        name, group_name = _names(stream, group)
        consumer_name = checks.consumer_bytes(consumer)
        checks.whole_number("count", count)
        if block_ms is not None:
            checks.duration_ms("block_ms", block_ms)
        if history_after is not None:
            after = checks.id_bytes("history_after", history_after)
            return await self._claims.history(name, group_name, consumer_name, after, count)
        options = [b"NOACK"] if no_ack else []
        if claim_idle_ms is not None:
            checks.duration_ms("claim_idle_ms", claim_idle_ms)
            await self._known()
            is_limited = self._claims.has_limit(name, group_name)
            if is_limited or Capability.CLAIMING_READ not in self.capabilities:
                return await self._claim_and_read(
                    group, consumer, stream, count, block_ms, claim_idle_ms, no_ack
                )
            options += [b"CLAIM", b"%d" % claim_idle_ms]
        if block_ms != 0:
            options += [b"BLOCK", b"%d" % (block_ms or 0)]
        reply = await self._ask(
            *(b"XREADGROUP", b"GROUP", group_name, consumer_name, b"COUNT", b"%d" % count),
            *(*options, b"STREAMS", name, b">"),
            may_fail=True,
        )
        return [] if is_missing(reply) else messages_of(entries_read(good(reply)), 1)

    async def _claim_and_read(
        self,
        group: str,
        consumer: str,
        stream: str,
        count: int,
        block_ms: int | None,
        claim_idle_ms: int,
        no_ack: bool,
    ) -> list[StreamMessage]:
        """Claim, then read. Nobody tells us when an entry has become idle, so a wait is cut into
        parts, and each begins with a claim."""
        deadline = None if block_ms is None else time.monotonic() + block_ms / 1000
        part_ms = max(claim_idle_ms, _SHORTEST_WAIT_MS)
        while True:
            claimed = await self.xautoclaim(stream, group, consumer, claim_idle_ms, count)
            if count and len(claimed) == count:
                return claimed
            left_ms = part_ms
            if deadline is not None:
                left_ms = min(part_ms, max(0, int((deadline - time.monotonic()) * 1000)))
            wait_ms = 0 if claimed else left_ms
            rest = count - len(claimed) if count else 0
            new = await self.xreadgroup(group, consumer, stream, rest, wait_ms, no_ack=no_ack)
            if claimed or new or left_ms < part_ms:
                return claimed + new
            if await self.get_stream_group_info(stream, group) is None:
                return []

    async def xack(self, stream: str, group: str, ids: Sequence[str]) -> int:
        names, entry_ids = _names(stream, group), checks.ids_bytes(ids)
        return as_int(await self._ask(b"XACK", *names, *entry_ids)) if entry_ids else 0

    async def nack(self, stream: str, group: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        names, entry_ids = _names(stream, group), checks.ids_bytes(ids)
        checks.duration_ms("delay_ms", delay_ms)
        if not entry_ids:
            return 0
        command = await self._release_command(*names, entry_ids, delay_ms)
        reply = await self._ask(*command, may_fail=True)
        if is_missing(reply):
            return 0
        return as_int(reply) if command[0] == NACK else len(as_list(reply))

    async def _release_command(
        self, stream: bytes, group: bytes, entry_ids: list[bytes], delay_ms: int
    ) -> list[bytes]:
        """Return the command that gives entries back."""
        known = await self._known()
        if NACK in known and (delay_ms == 0 or REDRIVE in known):
            delay = [b"DELAY", b"%d" % delay_ms] if delay_ms else []
            ids = [b"IDS", b"%d" % len(entry_ids), *entry_ids]
            return [NACK, stream, group, b"FAIL", *ids, *delay]
        # A claim that only moves it: the entry is not read and nothing is counted.
        idle = b"%d" % (0 if delay_ms else _LONG_IDLE_MS)
        nobody = checks.NOBODY.encode()
        return [b"XCLAIM", stream, group, nobody, b"0", *entry_ids, b"IDLE", idle, b"JUSTID"]

    async def xpending(
        self, stream: str, group: str, consumer: str | None = None, count: int = 0
    ) -> list[StreamMessage]:
        checks.whole_number("count", count)
        name, group_name = _names(stream, group)
        of_consumer = [] if consumer is None else [checks.consumer_bytes(consumer)]
        messages: list[StreamMessage] = []
        start = b"-"
        while True:
            page = min(_PAGE, count - len(messages)) if count else _PAGE
            listing = (b"XPENDING", name, group_name, start, b"+", b"%d" % page, *of_consumer)
            reply = await self._ask(*listing, may_fail=True)
            if is_missing(reply):
                return messages
            rows = pending_rows(reply)
            # Each by itself: a read of what is pending would count as a delivery.
            entries = await self.executor.execute(
                [(b"XRANGE", name, row.entry_id, row.entry_id) for row in rows]
            )
            for row, entry in zip(rows, entries, strict=True):
                present = as_list(entry)
                fields = entry_parts(present[0])[1] if present else None
                messages.append(message_of(row.entry_id, fields, row=row))
            if len(rows) < page or len(messages) == count:
                return messages
            start = b"(" + rows[-1].entry_id

    async def xclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, ids: Sequence[str]
    ) -> list[StreamMessage]:
        names, entry_ids = _names(stream, group), checks.ids_bytes(ids)
        consumer_name = checks.consumer_bytes(consumer)
        idle = checks.duration_ms("min_idle_ms", min_idle_ms)
        if not entry_ids:
            return []
        return await self._claims.claim(*names, consumer_name, idle, entry_ids)

    async def xautoclaim(
        self, stream: str, group: str, consumer: str, min_idle_ms: int, count: int = 1
    ) -> list[StreamMessage]:
        names, consumer_name = _names(stream, group), checks.consumer_bytes(consumer)
        idle = checks.duration_ms("min_idle_ms", min_idle_ms)
        checks.whole_number("count", count)
        return await self._claims.claim_idle(*names, consumer_name, idle, count)

    # Dead letters

    async def set_delivery_limit(self, stream: str, group: str, limit: int | None) -> None:
        name, group_name = _names(stream, group)
        number = 0 if limit is None else checks.whole_number("limit", limit, 1)
        if REDRIVE in await self._known():
            setting = (b"XGROUP", b"SETLIMIT", name, group_name, b"%d" % number)
            await self._ask_group(name, *setting)
            return
        # It is asked for nothing but whether the group is there.
        await self._ask_group(name, b"XPENDING", name, group_name)
        self._claims.set_limit(name, group_name, limit)

    async def redrive(self, stream: str, count: int = 0) -> int:
        name = checks.name_bytes("stream", stream)
        limit = [b"COUNT", b"%d" % count] if checks.whole_number("count", count) else []
        if REDRIVE in await self._known():
            return as_int(await self._ask(REDRIVE, name, *limit))
        dead = name + DEAD_LETTERS.encode()
        moved = 0
        while not count or moved < count:
            page = b"%d" % (min(_PAGE, count - moved) if count else _PAGE)
            entries = as_list(await self._ask(b"XRANGE", dead, b"-", b"+", b"COUNT", page))
            if not entries:
                break
            for entry in entries:
                await self._add_again(name, dead, entry)
            moved += len(entries)
        return moved

    async def _add_again(self, stream: bytes, dead: bytes, entry: Reply) -> None:
        entry_id, fields = entry_parts(entry)
        own_fields, _ = split_origin(fields or [])
        addition = (b"XADD", stream, b"*", *own_fields)
        replies = await self.executor.execute([addition, (b"XDEL", dead, entry_id)], is_atomic=True)
        for reply in replies:
            good(reply)


# How often an idle entry is looked for, however short it shall have been idle.
_SHORTEST_WAIT_MS = 100


def _names(stream: object, group: object) -> tuple[bytes, bytes]:
    return checks.name_bytes("stream", stream), checks.name_bytes("group", group)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _capabilities_of(commands: frozenset[bytes]) -> frozenset[Capability]:
    """Return what a server can do that knows some commands."""
    capabilities: set[Capability] = set()
    if REDRIVE in commands:
        capabilities |= _OURS
    if SETTINGS in commands or REDRIVE in commands:
        capabilities.add(Capability.IDEMPOTENT_ADD)
    if commands:
        # Older than all of them.
        capabilities.add(Capability.CLAIMING_READ)
    return frozenset(capabilities)


def _consumer_infos(reply: Reply, now: float) -> list[ConsumerInfo]:
    infos = []
    for consumer in map(as_mapping, as_list(reply)):
        name = as_text(consumer["name"])
        if name != checks.NOBODY:
            active = now - as_int(consumer["idle"]) / 1000
            infos.append(ConsumerInfo(name, as_int(consumer["pending"]), active))
    return infos

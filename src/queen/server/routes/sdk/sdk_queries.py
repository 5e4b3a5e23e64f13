"""POST /streams/v1/queries, /cycle, /state/get: what the published streaming SDK asks for.

A cycle or a read that is refused for what it says is answered with 200 and `success: false`,
as the SDK expects it; another status is one that the same request may do better with.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

import msgspec

from queen.core.cursor import AckStatus
from queen.core.cycle import reason_against_key, result_id
from queen.core.ids import parse_lease, parse_partition
from queen.core.names import reason_against_name
from queen.core.payload import reason_against_payload
from queen.errors import BadRequest, Conflict, LeaseLost, NotFound, QueenError
from queen.server.answers.pushes import known_results, push_body
from queen.server.api.failures import decode_body, failure
from queen.server.api.routing import Doc, Route
from queen.server.auth.access import Caller, Role
from queen.server.protocol.http import Request, Response
from queen.service.acks.ack_batch import storable
from queen.service.broker import Broker
from queen.service.intake.items import Planned
from queen.service.intake.pushes import Later
from queen.service.sdk.sdk_cycles import STALE, Cycle, CycleAck
from queen.service.sdk.sdk_queries import SdkQuery, StateFilter
from queen.wire import queries as wire
from queen.wire.answers import MAX_ITEMS, iso
from queen.wire.requests import PushItem
from queen.wire.results import PushResult

_register = msgspec.json.Decoder(wire.RegisterRequest)
_cycle = msgspec.json.Decoder(wire.CycleRequest)
_state = msgspec.json.Decoder(wire.StateRequest)
_results = msgspec.json.Decoder(list[PushResult])

_MAX_HASH_CHARACTERS = 255
_STATUSES = {"completed": AckStatus.DONE, "failed": AckStatus.DEAD, "dlq": AckStatus.DEAD}
_OPS = ("upsert", "delete")

_QUERY_ID = "3f0c9a52-7a41-4c7b-9a55-0d2f6f6f1042"
_PARTITION_ID = "00000000-0000-8007-bfff-ffffffffffff"
_REGISTER = Doc(
    "streaming SDK",
    "Register a query",
    """\
Makes a query known under its name, or finds it again. A query is told from others by its name
and its source queue. A definition that has changed is a 409, unless `reset` is said: then what
the query has kept is dropped, and it has a new id.""",
    body=wire.RegisterRequest,
    answers={200: wire.RegisterAnswer, 409: wire.RegisterRefused},
    example={
        "name": "orders-per-minute",
        "source_queue": "orders",
        "sink_queue": "orders.counted",
        "config_hash": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "reset": False,
    },
)
_CYCLE = Doc(
    "streaming SDK",
    "Commit a cycle of a query",
    """\
Changes state, pushes results and acknowledges what they were made from, in one transaction of
the database. Nothing is done when the lease of the ack is no longer held. A cycle that is sent
again because its answer was lost is not done again. A cycle without an ack that changes state
is left undone while its group has not done everything in the partition, or when state that it
removes has changed since it was read: `skipped` then says why.""",
    body=wire.CycleRequest,
    answers={200: wire.CycleAnswer},
    example={
        "query_id": _QUERY_ID,
        "partition_id": _PARTITION_ID,
        "consumer_group": "billing",
        "state_ops": [
            {"type": "upsert", "key": "customer-7", "value": {"seen": 1}},
            {"type": "delete", "key": "customer-8"},
        ],
        "push_items": [{"queue": "orders.counted", "payload": {"orders": 1}}],
        "ack": {
            "transactionId": "order-1042",
            "leaseId": "6f1c1f0e-6a0b-4e5c-9a39-1c5b0f4f2a11",
            "status": "completed",
            "count": 1,
        },
    },
)
_STATE = Doc(
    "streaming SDK",
    "Read the state of a query",
    """\
With `ripe_at_or_before` only windows that are over are answered: their end has passed on the
clock of the database too, and the query's group has read everything in the partition.""",
    body=wire.StateRequest,
    answers={200: wire.StateAnswer},
    example={"query_id": _QUERY_ID, "partition_id": _PARTITION_ID, "keys": []},
)


class Work(NamedTuple):
    """A cycle, and the results it pushes."""

    cycle: Cycle
    planned: list[Planned]
    later: list[Later]


class SdkQueryRoutes:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def routes(self) -> list[Route]:
        paths = (
            ("/streams/v1/queries", self.register, _REGISTER),
            ("/streams/v1/cycle", self.cycle, _CYCLE),
            ("/streams/v1/state/get", self.state, _STATE),
        )
        return [Route("POST", path, Role.WRITE, do, doc, scoped=True) for path, do, doc in paths]

    async def register(self, request: Request) -> Response:
        sent = decode_body(_register, request.body)
        name = _require_name("name", sent.name)
        source = _require_name("source_queue", sent.source_queue)
        config_hash = sent.config_hash or ""
        if not config_hash:
            raise BadRequest("config_hash is required")
        if len(config_hash) > _MAX_HASH_CHARACTERS or not config_hash.isprintable():
            raise BadRequest("config_hash is not printable, or longer than 255 characters")
        sink = _require_name("sink_queue", sent.sink_queue) if sent.sink_queue else None
        for queue in filter(None, (source, sink)):
            await self._broker.scope.queue(request.caller, queue)
        registered = await self._broker.sdk_queries.register(
            name, source, sink, config_hash, bool(sent.reset)
        )
        if registered.config_hash != config_hash:
            mismatch = Conflict(
                f"config_hash mismatch: query {name!r} is registered with another definition; "
                "send reset to drop what it has kept, or choose another name"
            )
            return failure(mismatch, success=False, query_id=str(registered.query_id), name=name)
        answer = wire.RegisterAnswer(
            True,
            str(registered.query_id),
            name,
            config_hash,
            registered.is_fresh,
            registered.was_reset,
        )
        return Response(200, msgspec.json.encode(answer))

    async def cycle(self, request: Request) -> Response:
        sent = decode_body(_cycle, request.body)
        answer = wire.CycleAnswer(False, sent.query_id, sent.partition_id)
        try:
            work = await self._work(request.caller, sent, answer)
            await self._broker.sdk_cycles.run(work.cycle)
        except QueenError as error:
            if error.retryable:
                raise
            answer.error = error.message
        else:
            _fill(answer, sent, work)
        return Response(200, msgspec.json.encode(answer))

    async def state(self, request: Request) -> Response:
        sent = decode_body(_state, request.body)
        try:
            sdk_query = await self._find_query(request.caller, sent.query_id, sent.partition_id)
            for text in (*(sent.keys or []), sent.key_prefix or ""):
                if "\0" in text:
                    raise BadRequest("key has a NUL character")
            selection = StateFilter(sent.keys or [], sent.key_prefix, sent.ripe_at_or_before)
            state = await self._broker.sdk_queries.read_state(sdk_query, selection)
        except QueenError as error:
            if error.retryable:
                raise
            return Response(200, msgspec.json.encode(wire.StateAnswer(False, error=error.message)))
        rows = [
            wire.StateRow(key, msgspec.Raw(value), iso(row["updated_at"]))
            for key, value, row in state
        ]
        return Response(200, msgspec.json.encode(wire.StateAnswer(True, rows)))

    async def _find_query(
        self, caller: Caller, query_id: str | None, partition_id: str | None
    ) -> SdkQuery:
        """Return the query that a request is about, in the partition that it is about."""
        if not query_id:
            raise BadRequest("query_id is required")
        if not partition_id:
            raise BadRequest("partition_id is required")
        partition_number = parse_partition(partition_id)
        partitions = await self._broker.scope.partitions(
            caller, [partition_number] if partition_number is not None else []
        )
        if partition_number not in partitions:
            raise NotFound("Partition not found")
        try:
            parsed = uuid.UUID(query_id)
        except ValueError:
            raise NotFound("Query not found, or it does not read this partition") from None
        return await self._broker.sdk_queries.find(parsed, partitions[partition_number])

    async def _work(
        self, caller: Caller, sent: wire.CycleRequest, answer: wire.CycleAnswer
    ) -> Work:
        """Turn a request into what the broker does."""
        sdk_query = await self._find_query(caller, sent.query_id, sent.partition_id)
        answer.queueName = sdk_query.partition.queue.name
        group = sent.consumer_group or sdk_query.group
        reason = reason_against_name("consumer group", group)
        if reason:
            raise BadRequest(reason)
        state = _final_state(sent.state_ops or [])
        ack = _ack(sent.ack) if sent.ack is not None else None
        items = sent.push_items or []
        if len(items) > MAX_ITEMS:
            raise BadRequest(f"more than {MAX_ITEMS} push_items in one cycle")
        if ack is not None:
            _name_results(items, sdk_query, ack)
        planned, later = await self._broker.intake.plan_all(caller, items)
        cycle = Cycle(
            sdk_query,
            group,
            state,
            [plan.append for plan in planned],
            [scheduled.message for scheduled in later],
            ack,
            release=sent.release_lease is not False,
        )
        return Work(cycle, planned, later)


def _require_name(what: str, name: str | None) -> str:
    if not name:
        raise BadRequest(f"{what} is required")
    reason = reason_against_name(what, name)
    if reason:
        raise BadRequest(reason)
    return name


def _final_state(ops: list[wire.StateOp]) -> dict[str, bytes | None]:
    """Return what each key is to be after all operations; None when it is removed."""
    if len(ops) > wire.MAX_STATE_OPS:
        raise BadRequest(f"more than {wire.MAX_STATE_OPS} state_ops in one cycle")
    final: dict[str, bytes | None] = {}
    for number, op in enumerate(ops):
        if op.type not in _OPS:
            raise BadRequest(f"Unknown state_op type: {op.type}")
        key = op.key or ""
        value = bytes(op.value) if op.type == "upsert" else None
        reason = reason_against_key(key)
        if reason is None and value is not None:
            reason = reason_against_payload(value)
        if reason:
            raise BadRequest(f"state_ops[{number}]: {reason}")
        final[key] = value
    return final


def _ack(ack: wire.CycleAck) -> CycleAck:
    if not ack.transactionId:
        raise BadRequest("ack.transactionId is required")
    status = _STATUSES.get(ack.status or "completed")
    if status is None:
        raise BadRequest(f"Unknown ack.status: {ack.status}")
    lease_id = parse_lease(ack.leaseId) if ack.leaseId else None
    if lease_id is None:
        raise LeaseLost(STALE)
    error = storable(ack.error) if ack.error and status is AckStatus.DEAD else None
    return CycleAck(ack.transactionId, lease_id, status, ack.count, error)


def _name_results(items: list[PushItem], sdk_query: SdkQuery, ack: CycleAck) -> None:
    """Give results that have no id the one that the same cycle would give them again."""
    place = (str(sdk_query.id), sdk_query.partition.uuid, ack.transaction_id)
    for index, item in enumerate(items):
        if item.transactionId is None:
            item.transactionId = result_id(ack.lease_id, *place, index)


def _fill(answer: wire.CycleAnswer, sent: wire.CycleRequest, work: Work) -> None:
    """Say what became of a cycle."""
    cycle = work.cycle
    answer.success = True
    if cycle.skipped is not None:
        answer.skipped = cycle.skipped
        return
    answer.state_ops_applied = len(sent.state_ops or [])
    if cycle.is_repeated:
        answer.repeated = True
        answer.push_results = known_results(work.planned)
    else:
        answer.push_results = _results.decode(push_body(work.planned, work.later))
    if cycle.ack is not None:
        dead = cycle.ack.status is AckStatus.DEAD
        released = cycle.has_ended_lease or (cycle.is_repeated and (cycle.release or dead))
        count = cycle.ack.count if cycle.ack.count is not None else 1
        answer.ack_result = wire.CycleAckResult(True, count, released, dead)

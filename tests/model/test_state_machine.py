"""Any order of events, on two servers, against a model in memory.

Hypothesis draws runs of steps; after each step what the broker answers is what the model
says. At the end everything is drained: nothing is lost, nothing that is done comes again,
the order within a partition is kept, and the dead letters are those of the model.

The default runs are the same every time. `QUEEN_TEST_MODEL_RUNS=5000` draws new ones; what
fails prints how to run it again, and `QUEEN_TEST_MODEL_SHRINK=1` looks for the shortest run
that fails, which takes minutes.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.model.broker import AGE_S, QUEUE_MODE, Broker
from tests.model.model import REFUSED, Delivery, Lane, Letter, Message, Model

SHRINK = bool(os.environ.get("QUEEN_TEST_MODEL_SHRINK"))
RUNS = int(os.environ.get("QUEEN_TEST_MODEL_RUNS", "0"))
DEFAULT_RUNS, STEPS = 100, 30
GROUPS = (QUEUE_MODE, "g", "late")
PARTITIONS = ("a", "b", "c")
# Found again after one step of time, not after two.
DEDUP_AGE = 1
RETENTION_AGE, DONE_AGE = 2, 1
# What a cursor remembers of leases that are over.
RECEIPTS = 16

servers = st.integers(0, 1)
groups = st.sampled_from(GROUPS)
partitions = st.sampled_from(PARTITIONS)
batches = st.integers(1, 5)
ids = st.integers(0, 11).map(lambda number: f"id-{number}")
numbers = st.integers(0, 1_000)
statuses = st.sampled_from(["completed"] * 4 + ["failed"] * 3 + ["retry", "dlq"])


class Held:
    """What one pop was given: messages of one lease, perhaps of several partitions."""

    def __init__(self, lease_id: str, group: str, server: int) -> None:
        self.lease_id = lease_id
        self.group = group
        self.server = server
        self.messages: list[dict[str, Any]] = []
        # Messages of it were deleted or removed since: only the server that granted it still
        # knows all that was in it.
        self.changed = False


class BrokerAgainstModel(RuleBasedStateMachine):
    broker: Broker

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"model-{uuid.uuid4().hex[:12]}"
        self.model = Model(0, False)
        self.held: list[Held] = []
        self.partition_ids: dict[str, str] = {}
        self.message_ids: dict[tuple[str, int], str] = {}
        self.payload = 0
        self.spread = len(PARTITIONS)

    @initialize(
        retry_limit=st.sampled_from([0, 1, 2, 3]),
        delayed=st.sampled_from([0, 0, 0, 1]),
        spread=st.integers(1, len(PARTITIONS)),
    )
    def configure(self, retry_limit: int, delayed: int, spread: int) -> None:
        self.spread = spread
        self.model = Model(retry_limit, bool(delayed))
        self.broker.configure(
            self.queue,
            retryLimit=retry_limit,
            retryDelay=delayed * AGE_S * 1000,
            leaseTime=AGE_S,
            dedupWindowSeconds=AGE_S * 3 // 2,
        )

    # ---- push ----

    @rule(server=servers, items=st.lists(st.tuples(partitions, ids), min_size=1, max_size=5))
    def push(self, server: int, items: list[tuple[str, str]]) -> None:
        self._push(server, [(self._place(partition), one) for partition, one in items])

    @rule(server=servers, partition=partitions, count=st.integers(1, 5))
    def push_new(self, server: int, partition: str, count: int) -> None:
        self._push(server, [(self._place(partition), uuid.uuid4().hex) for _ in range(count)])

    def _place(self, partition: str) -> str:
        """Few partitions see more of each kind of step."""
        return PARTITIONS[PARTITIONS.index(partition) % self.spread]

    def _push(self, server: int, items: list[tuple[str, str]]) -> None:
        first = self.payload
        self.payload += len(items)
        body = [
            {"queue": self.queue, "partition": partition, "transactionId": one, "payload": n}
            for n, (partition, one) in enumerate(items, first)
        ]
        answer = self.broker.servers[server].push(*body)
        assert answer.status == 201, answer.raw
        results = answer.json
        assert [one["transaction_id"] for one in results] == [one for _, one in items]
        for partition in dict.fromkeys(partition for partition, _ in items):
            mine = [
                (one, n, result)
                for n, ((name, one), result) in enumerate(zip(items, results, strict=True), first)
                if name == partition
            ]
            self._check_pushed(partition, mine)

    def _check_pushed(self, partition: str, items: list[tuple[str, int, dict[str, Any]]]) -> None:
        known = {one: self.model.stored(partition, one, DEDUP_AGE) for one, _, _ in items}
        new: dict[str, tuple[str, int, None]] = {}
        for one, n, _ in items:
            if not known[one]:
                new.setdefault(one, (one, n, None))
        added = self.model.log(partition).append(new.values()) if new else []
        fresh = {one.payload: one for one in added}
        for _, n, result in items:
            self.partition_ids[partition] = result["partition_id"]
            if n in fresh:
                assert result["status"] == "queued", result
                self.message_ids[partition, fresh[n].offset] = result["message_id"]
        for one, n, result in items:
            if n not in fresh:
                assert result["status"] == "duplicate", result
                (there,) = self.model.stored(partition, one, DEDUP_AGE)
                assert result["message_id"] == self.message_ids[partition, there.offset]

    # ---- pop ----

    @rule(server=servers, group=groups, partition=partitions, batch=batches)
    def pop_named(self, server: int, group: str, partition: str, batch: int) -> None:
        self._pop_named(server, group, self._place(partition), batch, auto=False)

    @rule(
        server=servers,
        group=groups,
        partition=partitions,
        batch=batches,
        wishes=st.lists(st.tuples(numbers, statuses), min_size=1, max_size=6),
    )
    def work(
        self,
        server: int,
        group: str,
        partition: str,
        batch: int,
        wishes: list[tuple[int, str]],
    ) -> None:
        """Pop and ack some of it: what a consumer does most of the time."""
        if self._pop_named(server, group, self._place(partition), batch, auto=False):
            self._ack_some(1 - server, self.held[-1], wishes)

    @rule(
        server=servers,
        group=groups,
        partition=partitions,
        batch=batches,
        wishes=st.lists(st.tuples(numbers, statuses), min_size=6, max_size=12),
    )
    def work_through(
        self,
        server: int,
        group: str,
        partition: str,
        batch: int,
        wishes: list[tuple[int, str]],
    ) -> None:
        """The same, one ack after the other; often all of it."""
        if self._pop_named(server, group, self._place(partition), batch, auto=False):
            for wish in wishes[: len(self.held[-1].messages) + 2]:
                self._ack_some(server, self.held[-1], [wish])

    @rule(server=servers, group=groups, partition=partitions, batch=batches)
    def pop_at_once(self, server: int, group: str, partition: str, batch: int) -> None:
        self._pop_named(server, group, self._place(partition), batch, auto=True)

    def _pop_named(
        self, server: int, group: str, partition: str, batch: int, *, auto: bool
    ) -> list[dict[str, Any]]:
        body = self._pop(server, group, partition, batch=batch, autoAck=str(auto).lower())
        if (partition, group) not in self.model.lanes:
            assert body is None
            return []
        lane = self.model.lanes[partition, group]
        lease_id = None if auto else (body["leaseId"] if body else "nobody")
        expected = lane.claim(lease_id, batch)
        messages = body["messages"] if body else []
        self._check_messages(lane, messages, expected)
        self._hold(server, group, messages, auto)
        self._check_letters(server)
        return messages

    @rule(
        server=servers,
        group=groups,
        batch=batches,
        count=st.integers(1, 3),
        auto=st.sampled_from([False, False, True]),
    )
    def pop_any(self, server: int, group: str, batch: int, count: int, auto: bool) -> None:
        self._meet(group)
        lanes = self.model.lanes_of(group)
        # What one server does another one hears of a moment later: who waits is served.
        certain = any(lane.is_claimable and not lane.is_quiet for lane in lanes)
        query = {"wait": "true", "timeout": 10_000} if certain else {}
        body = self._pop(
            server, group, None, batch=batch, partitions=count, autoAck=str(auto).lower(), **query
        )
        assert body is not None or not certain, "a pop that waits must find what is there"
        claims = body["claims"] if body else []
        assert len(claims) <= count
        assert sum(one["endOffset"] - one["firstOffset"] for one in claims) <= batch
        self._learn_what_was_tried(group, {one["partition"] for one in claims}, auto)
        for claim in claims:
            assert body is not None
            self._check_claim(body, claim, batch if count == 1 else None, auto)
        self._hold(server, group, body["messages"] if body else [], auto)
        self._check_letters(server)

    def _check_claim(
        self, body: dict[str, Any], claim: dict[str, Any], batch: int | None, auto: bool
    ) -> None:
        """Check one partition of an answer; without a batch of its own it may have less."""
        lane = self.model.lanes[claim["partition"], body["consumerGroup"]]
        while lane.is_exhausted and not lane.is_held and not auto:
            lane.give_up()
        assert lane.pass_over(claim["firstOffset"]), (claim, lane.position)
        size = claim["endOffset"] - claim["firstOffset"]
        expected = lane.claim(None if auto else body["leaseId"], batch or size)
        messages = [one for one in body["messages"] if one["partition"] == claim["partition"]]
        self._check_messages(lane, messages, expected)
        assert messages
        assert not batch or lane.lease is None or lane.lease.stop == claim["endOffset"]

    def _learn_what_was_tried(self, group: str, served: set[str], auto: bool) -> None:
        """A pop for any partition may have tried some that had nothing to show after all."""
        doubtful = [
            lane
            for lane in self.model.lanes_of(group)
            if lane.log.name not in served and not lane.is_held and lane.next_offset < lane.log.head
        ]
        if not doubtful:
            return
        at = self.broker.cursors(self.queue)
        for lane in doubtful:
            committed = at.get((lane.log.name, group), lane.position)
            if committed > lane.position and lane.is_exhausted and not auto:
                lane.give_up()
            if committed > lane.position:
                assert lane.pass_over(committed), (lane.log.name, group, committed)

    def _meet(self, group: str) -> dict[str, str]:
        self.model.meet(group, only_new=group == "late")
        query = {} if group == QUEUE_MODE else {"consumerGroup": group}
        return query | ({"subscriptionMode": "new"} if group == "late" else {})

    def _pop(self, server: int, group: str, partition: str | None, **query: Any) -> Any:
        """Return the body of the answer, None when there is nothing."""
        answer = self.broker.servers[server].pop(
            self.queue, partition, **self._meet(group), **query
        )
        assert answer.status in (200, 204), answer.raw
        return answer.json if answer.status == 200 else None

    def _check_messages(
        self, lane: Lane, messages: list[dict[str, Any]], expected: list[Delivery]
    ) -> None:
        found = [
            Delivery(one["offset"], one["transactionId"], one["data"], one["retryCount"])
            for one in messages
        ]
        assert found == expected, (lane.log.name, lane.group, found, expected)
        for one in messages:
            place = (lane.log.name, one["offset"])
            assert self.message_ids.setdefault(place, one["id"]) == one["id"]

    def _hold(self, server: int, group: str, messages: list[dict[str, Any]], auto: bool) -> None:
        if messages and not auto:
            held = Held(messages[0]["leaseId"], group, server)
            held.messages = messages
            self.held.append(held)

    # ---- ack ----

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers, wishes=st.lists(st.tuples(numbers, statuses), max_size=6))
    def ack_some(self, server: int, which: int, wishes: list[tuple[int, str]]) -> None:
        self._ack_some(server, self._choose(which), wishes)

    def _ack_some(self, server: int, held: Held, wishes: list[tuple[int, str]]) -> None:
        chosen = {n % len(held.messages): status for n, status in wishes}
        self._ack(server, held, [(held.messages[n], status) for n, status in chosen.items()])

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers, status=statuses)
    def ack_all(self, server: int, which: int, status: str) -> None:
        held = self._choose(which)
        self._ack(server, held, [(one, status) for one in held.messages])

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers, message=numbers, status=statuses)
    def ack_one(self, server: int, which: int, message: int, status: str) -> None:
        held = self._choose(which)
        one = held.messages[message % len(held.messages)]
        answer = self.broker.servers[self._who(server, held)].ack(one, status)
        assert answer.status in (200, 409), answer.raw
        answers = self._expected(held, [(one, status)])
        if answer.status == 409:
            result = {"status": REFUSED, "success": False, "dlq": False}
        else:
            result = answer.json
        self._check_result(held, one, status, result, answers[0])
        self._check_letters(server)

    def _choose(self, which: int) -> Held:
        """Return one of the last pops; those before them are forgotten."""
        latest = self.held[-5:]
        return latest[which % len(latest)]

    def _who(self, server: int, held: Held) -> int:
        return held.server if held.changed else server

    def _ack(self, server: int, held: Held, acks: list[tuple[dict[str, Any], str]]) -> None:
        body = {
            "consumerGroup": held.group,
            "acknowledgments": [
                {
                    "transactionId": one["transactionId"],
                    "partitionId": one["partitionId"],
                    "leaseId": held.lease_id,
                    "status": status,
                }
                for one, status in acks
            ],
        }
        api = self.broker.servers[self._who(server, held)]
        answer = api.call("POST", "/api/v1/ack/batch", body)
        assert answer.status == 200, answer.raw
        results = answer.json["results"]
        expected = self._expected(held, acks)
        for (one, wish), result, told in zip(acks, results, expected, strict=True):
            self._check_result(held, one, wish, result, told)
        self._check_letters(server)

    def _expected(self, held: Held, acks: list[tuple[dict[str, Any], str]]) -> list[str]:
        wishes: dict[str, dict[str, str]] = {}
        for one, status in acks:
            wishes.setdefault(one["partition"], {})[one["transactionId"]] = status
        answers = {
            partition: self.model.lanes[partition, held.group].ack(held.lease_id, mine)
            for partition, mine in wishes.items()
        }
        return [answers[one["partition"]][one["transactionId"]] for one, _ in acks]

    def _check_result(
        self, held: Held, one: dict[str, Any], wish: str, result: dict[str, Any], expected: str
    ) -> None:
        assert result["success"] == (result["status"] != REFUSED)
        lane = self.model.lanes[one["partition"], held.group]
        repeated = lane.told_of_done(one["offset"], wish)
        if expected == REFUSED and result["success"]:
            # The lease is over; who repeats what it has done is told so.
            assert result["status"] == repeated
            assert held.lease_id in lane.receipts
            assert not lane.is_open(one["offset"])
            return
        if expected == REFUSED and repeated != REFUSED:
            known = held.lease_id in lane.ended[-RECEIPTS:] and one["offset"] >= lane.log.tail
            assert not known or lane.is_open(one["offset"]), (one, "a repeated ack is refused")
        assert result["status"] == expected, (one, result, expected)
        assert result["dlq"] == (expected == "failed_dlq")

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers)
    def renew(self, server: int, which: int) -> None:
        held = self._choose(which)
        lanes = [self.model.lanes[one["partition"], held.group] for one in held.messages]
        live = any(
            lane.lease is not None and lane.is_held and lane.lease.lease_id == held.lease_id
            for lane in lanes
        )
        answer = self.broker.servers[server].extend(held.lease_id, {"seconds": 2 * AGE_S})
        assert answer.status == (200 if live else 404), answer.raw

    @precondition(lambda self: self.held)
    @rule(which=numbers)
    def lapse(self, which: int) -> None:
        held = self._choose(which)
        self.broker.lapse(held.lease_id)
        for lane in self.model.lanes_of(held.group):
            if lane.lease is not None and lane.is_held and lane.lease.lease_id == held.lease_id:
                lane.lease.live = False
                lane.is_quiet = True

    @precondition(lambda self: self.held)
    @rule(which=numbers)
    def lapse_again(self, which: int) -> None:
        self.lapse(which)

    # ---- seek ----

    @rule(
        server=servers,
        group=groups,
        to=st.sampled_from(["toBeginning", "toEnd", 1, 2]),
        partition=st.none() | partitions,
        dry=st.booleans(),
    )
    def seek(
        self, server: int, group: str, to: str | int, partition: str | None, dry: bool
    ) -> None:
        body: dict[str, Any] = {"dryRun": dry}
        if isinstance(to, int):
            # Half a step back: between what was written before and after time went on.
            at = datetime.now(UTC) - timedelta(seconds=AGE_S * to - AGE_S / 2)
            body["timestamp"] = at.isoformat()
        else:
            body[to] = True
        self._seek(server, group, partition and self._place(partition), to, body)

    @rule(server=servers, group=groups, partition=partitions, offset=st.integers(0, 12))
    def seek_offset(self, server: int, group: str, partition: str, offset: int) -> None:
        self._seek(server, group, self._place(partition), None, {"offset": offset})

    def _seek(
        self,
        server: int,
        group: str,
        partition: str | None,
        to: str | int | None,
        body: dict[str, Any],
    ) -> None:
        answer = self.broker.seek(server, group, self.queue, partition, **body)
        if group not in self.model.groups or partition not in (None, *self.model.logs):
            assert answer.status == 404
            return
        assert answer.status == 200, answer.raw
        lanes = [lane for lane in self.model.lanes_of(group) if partition in (None, lane.log.name)]
        moves = [(lane, self._target(lane, to, body.get("offset"))) for lane in lanes]
        again = sum(max(lane.next_offset - target, 0) for lane, target in moves)
        skipped = sum(max(target - lane.next_offset, 0) for lane, target in moves)
        told = (answer.json["messagesAgain"], answer.json["messagesSkipped"])
        assert told == (again, skipped)
        if not body.get("dryRun"):
            for lane, target in moves:
                lane.seek(target)

    def _target(self, lane: Lane, to: str | int | None, offset: int | None) -> int:
        log = lane.log
        if offset is not None:
            return min(max(offset, log.tail), log.head)
        if isinstance(to, int):
            return log.first_younger_than(to)
        return log.tail if to == "toBeginning" else log.head

    # ---- dead letters ----

    @precondition(lambda self: self.model.letters)
    @rule(server=servers, group=groups)
    def retry_letters(self, server: int, group: str) -> None:
        mine = [one for one in self._letter_ids(server) if one.group == group]
        retried = self.broker.retry_letters(server, queue=self.queue, consumerGroup=group)
        assert retried == len(mine)
        self.model.redrive(mine)
        self._check_letters(server)

    @precondition(lambda self: self.model.letters)
    @rule(server=servers, which=st.sets(numbers, min_size=1, max_size=3))
    def retry_some_letters(self, server: int, which: set[int]) -> None:
        ids = self._letter_ids(server)
        letters = list(ids)
        mine = [letters[n] for n in sorted({n % len(letters) for n in which})]
        assert self.broker.retry_letters(server, ids=[ids[one] for one in mine]) == len(mine)
        self.model.redrive(mine)
        self._check_letters(server)

    @precondition(lambda self: self.model.letters)
    @rule(server=servers, group=groups)
    def purge_letters(self, server: int, group: str) -> None:
        mine = [key for key, one in self.model.letters.items() if one.group == group]
        assert self.broker.purge_letters(server, self.queue, group) == len(mine)
        for key in mine:
            del self.model.letters[key]

    def _letter_ids(self, server: int) -> dict[Letter, str]:
        """Return the dead letters with their ids, in the order in which they died."""
        return {
            Letter(
                one["partition"],
                one["consumerGroup"] or QUEUE_MODE,
                one["offset"],
                one["transactionId"],
                one["data"],
                one["retryCount"],
            ): one["id"]
            for one in self.broker.letters(server, self.queue)
        }

    def _check_letters(self, server: int) -> None:
        found, expected = set(self._letter_ids(server)), set(self.model.letters.values())
        assert found == expected, (found - expected, expected - found)

    # ---- single messages ----

    @precondition(lambda self: any(log.kept for log in self.model.logs.values()))
    @rule(server=servers, which=numbers)
    def delete(self, server: int, which: int) -> None:
        log, message = self._any_message(which)
        place = self.message_ids.get((log.name, message.offset))
        if place is None or self._is_leased(log.name, message.offset):
            # While somebody works on it, it counts as done or not as its server remembers it.
            return
        answer = self.broker.message(server, "DELETE", self.partition_ids[log.name], place)
        assert answer.status == (404 if message.deleted else 200), answer.raw
        self.model.delete(log.name, message)
        self._mark_changed()

    @precondition(lambda self: any(log.kept for log in self.model.logs.values()))
    @rule(server=servers, which=numbers)
    def set_aside(self, server: int, which: int) -> None:
        log, message = self._any_message(which)
        place = self.message_ids.get((log.name, message.offset))
        if place is None or message.only_group is not None:
            return
        answer = self.broker.message(server, "POST", self.partition_ids[log.name], place, "/dlq")
        if message.deleted:
            assert answer.status == 404
            return
        if not self.model.groups:
            self.model.meet(QUEUE_MODE, only_new=False)
        lanes = [self.model.lanes[log.name, group] for group in self.model.groups]
        moved = [lane.group for lane in lanes if lane.set_aside(message.offset)]
        assert answer.status == (200 if moved else 409), answer.raw
        assert not moved or answer.json["consumerGroups"] == moved
        self._check_letters(server)

    def _any_message(self, which: int) -> tuple[Any, Message]:
        every = [(log, one) for log in self.model.logs.values() for one in log.kept]
        return every[which % len(every)]

    def _is_leased(self, partition: str, offset: int) -> bool:
        leases = [
            lane.lease
            for (name, _), lane in self.model.lanes.items()
            if name == partition and lane.lease is not None
        ]
        return any(lease.start <= offset < lease.stop for lease in leases)

    def _mark_changed(self) -> None:
        for held in self.held:
            held.changed = True

    # ---- time ----

    @rule()
    def grow_older(self) -> None:
        self.broker.grow_older(self.queue)
        self.model.grow_older()

    @precondition(lambda self: self.model.has_delay)
    @rule()
    def end_waits(self) -> None:
        self.broker.end_waits(self.queue)
        for lane in self.model.lanes.values():
            lane.is_quiet = lane.is_quiet or lane.waits
            lane.waits = False

    @precondition(lambda self: any(one.age for log in self.model.logs.values() for one in log.kept))
    @rule(old=st.booleans(), done=st.booleans())
    def retain(self, old: bool, done: bool) -> None:
        options = {}
        if old:
            options["retentionSeconds"] = AGE_S * RETENTION_AGE - AGE_S // 2
        if done:
            options["completedRetentionSeconds"] = AGE_S * DONE_AGE - AGE_S // 2
        self.broker.retain(self.queue, **options)
        self.model.retain(RETENTION_AGE if old else None, DONE_AGE if done else None)
        self._mark_changed()
        self._check_logs()

    def _check_logs(self) -> None:
        expected = {
            name: [log.tail, log.head, len(log.kept)] for name, log in self.model.logs.items()
        }
        assert self.broker.logs(self.queue) == expected

    # ---- the end ----

    def teardown(self) -> None:
        try:
            self._drain()
        finally:
            self.broker.servers[0].delete_queue(self.queue)

    def _drain(self) -> None:
        """Finish everything; all that is left to any group comes, once and in order."""
        if self.model.has_delay:
            self.end_waits()
        for number, lane in enumerate(self.model.lanes.values()):
            if lane.is_held:
                assert lane.lease is not None
                self.broker.lapse(lane.lease.lease_id)
                lane.lease.live = False
            while messages := self._pop_named(
                number % 2, lane.group, lane.log.name, batch=50, auto=False
            ):
                self._ack(number % 2, self.held[-1], [(one, "completed") for one in messages])
        self._check_logs()
        self._check_done()

    def _check_done(self) -> None:
        for partition, group in self.model.lanes:
            assert self.model.lanes[partition, group].next_offset == self.model.logs[partition].head
        for (partition, group), committed in self.broker.cursors(self.queue).items():
            log = self.model.logs.get(partition)
            assert log is None or max(committed, log.tail) == log.head, (partition, group)


@pytest.mark.slow
@pytest.mark.timeout(600 + RUNS)
def test_two_servers_do_what_the_model_says(broker: Broker) -> None:
    class Machine(BrokerAgainstModel):
        pass

    Machine.broker = broker
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=RUNS or DEFAULT_RUNS,
            stateful_step_count=STEPS,
            derandomize=not RUNS,
            database=None,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            phases=[Phase.generate, *([Phase.shrink] if SHRINK else [])],
            suppress_health_check=list(HealthCheck),
        ),
    )

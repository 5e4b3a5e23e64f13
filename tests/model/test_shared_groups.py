"""Any order of events in a shared group, on two servers, against a model in memory.

After each step: nothing is handed to two at once, nothing that is done comes again, a lease that is
over acks nothing, and the spans of the database hold exactly what the model says is not done. At
the end all of it is drained: every message is done once, or dead.

The default runs are the same every time. `QUEEN_TEST_MODEL_RUNS=5000` draws new ones.
"""

from __future__ import annotations

import os
import uuid
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

from tests.model.broker import AGE_S, Broker
from tests.model.shared import REFUSED, SharedLog, State

RUNS = int(os.environ.get("QUEEN_TEST_MODEL_RUNS", "0"))
DEFAULT_RUNS, STEPS = 40, 40
GROUP = "workers"

servers = st.integers(0, 1)
batches = st.integers(1, 6)
numbers = st.integers(0, 1_000)
statuses = st.sampled_from(["completed"] * 4 + ["failed"] * 3 + ["retry", "dlq"])
wishes = st.lists(st.tuples(numbers, statuses), min_size=1, max_size=8)


class SharedAgainstModel(RuleBasedStateMachine):
    broker: Broker
    turns = False

    def __init__(self) -> None:
        super().__init__()
        self.queue = f"shared-{uuid.uuid4().hex[:12]}"
        self.log = SharedLog(0, False)
        self.held: list[tuple[str, list[dict[str, Any]]]] = []

    @initialize(
        retry_limit=st.sampled_from([0, 1, 2, 3]),
        delayed=st.sampled_from([0, 0, 1]),
        begins_shared=st.booleans(),
    )
    def configure(self, retry_limit: int, delayed: int, begins_shared: bool) -> None:
        begins_shared = begins_shared or not self.turns
        self.log = SharedLog(retry_limit, bool(delayed))
        self.log.is_shared = self.log.counts_hold = begins_shared
        self.broker.configure(
            self.queue,
            retryLimit=retry_limit,
            retryDelay=delayed * AGE_S * 1000,
            leaseTime=AGE_S,
            sharedGroups=begins_shared,
        )
        self.push(0, 3)

    @rule(server=servers, count=st.integers(1, 8))
    def push(self, server: int, count: int) -> None:
        items = [{"queue": self.queue, "payload": len(self.log.messages) + n} for n in range(count)]
        assert self.broker.servers[server].push(*items).status == 201
        self.log.push(count)

    # ---- pop ----

    @rule(server=servers, batch=batches)
    def pop(self, server: int, batch: int) -> None:
        self._pop(server, batch, auto=False)

    @rule(server=servers, batch=batches)
    def pop_again(self, server: int, batch: int) -> None:
        self._pop(server, batch, auto=False)

    @rule(server=servers, batch=batches)
    def pop_at_once(self, server: int, batch: int) -> None:
        self._pop(server, batch, auto=True)

    @rule(server=servers, batch=batches, wished=wishes)
    def work(self, server: int, batch: int, wished: list[tuple[int, str]]) -> None:
        """Pop and ack some of it: what a consumer does most of the time."""
        if self._pop(server, batch, auto=False):
            self._ack(1 - server, len(self.held) - 1, wished)

    @rule(server=servers)
    def pop_any(self, server: int) -> None:
        """Whoever waits for any partition is served, if there is something."""
        if self.log.is_shared and self.log.is_claimable():
            self._pop(server, 2, auto=False, partition=None, wait="true", timeout=10_000)

    def _pop(
        self,
        server: int,
        batch: int,
        *,
        auto: bool,
        partition: str | None = "Default",
        **query: Any,
    ) -> list[dict[str, Any]]:
        query |= {"consumerGroup": GROUP, "batch": batch, "autoAck": str(auto).lower()}
        answer = self.broker.servers[server].pop(self.queue, partition, **query)
        messages = answer.messages
        self._learn_who_was_given_up({one["offset"] for one in messages})
        if not messages:
            assert not self.log.is_claimable(), [vars(one) for one in self.log.messages]
            return messages
        assert len(messages) <= batch
        tries = {one["offset"]: one["retryCount"] for one in messages}
        assert [one["data"] for one in messages] == list(tries)
        lease_id = None if auto else messages[0]["leaseId"]
        self.log.handed(lease_id, tries)
        if lease_id is not None:
            self.held.append((lease_id, messages))
        self._check_spans()
        return messages

    def _learn_who_was_given_up(self, delivered: set[int]) -> None:
        for offset in set(self.broker.dead_offsets(self.queue)) - delivered:
            message = self.log.messages[offset]
            # One that was moved back to may die again, and its letter is there already.
            if not message.is_dead or (message.state is State.DUE and self._is_done(offset)):
                self.log.died_alone(offset)

    def _is_done(self, offset: int) -> bool:
        """Whether the database thinks so."""
        return any(
            offset < committed or (handed is not None and offset < handed and offset not in spans)
            for committed, handed, _, spans in self.broker.spans(self.queue, GROUP)
        )

    # ---- ack ----

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers, wished=wishes)
    def ack_some(self, server: int, which: int, wished: list[tuple[int, str]]) -> None:
        self._ack(server, self._choose(which), wished)

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers, status=statuses)
    def ack_all(self, server: int, which: int, status: str) -> None:
        chosen = self._choose(which)
        self._ack(server, chosen, [(n, status) for n in range(len(self.held[chosen][1]))])

    def _choose(self, which: int) -> int:
        """Return one of the last pops; those before them are forgotten."""
        few = min(len(self.held), 8)
        return len(self.held) - 1 - which % few

    def _ack(self, server: int, which: int, wished: list[tuple[int, str]]) -> None:
        lease_id, messages = self.held[which]
        chosen = {n % len(messages): status for n, status in wished}
        acks = [(messages[n], status) for n, status in chosen.items()]
        body = {
            "consumerGroup": GROUP,
            "acknowledgments": [
                {
                    "transactionId": message["transactionId"],
                    "partitionId": message["partitionId"],
                    "leaseId": lease_id,
                    "status": status,
                }
                for message, status in acks
            ],
        }
        answer = self.broker.servers[server].call("POST", "/api/v1/ack/batch", body)
        assert answer.status == 200, answer.raw
        results = [result["status"] for result in answer.json["results"]]
        if self.log.counts_hold:
            self._check_results(lease_id, acks, results)
        else:
            offsets = [message["offset"] for message, _ in acks]
            self.log.learn(lease_id, dict(zip(offsets, results, strict=True)))
        self._check_spans()

    def _check_results(
        self, lease_id: str, acks: list[tuple[dict[str, Any], str]], results: list[str]
    ) -> None:
        told = self.log.ack(lease_id, {message["offset"]: status for message, status in acks})
        for (message, status), result in zip(acks, results, strict=True):
            offset = message["offset"]
            if told[offset] == REFUSED and result != REFUSED:
                # Who repeats what was done is told so.
                assert result == self.log.repeated(lease_id, offset, status), result
            else:
                assert result == told[offset], (message, status, result)

    @precondition(lambda self: self.held)
    @rule(server=servers, which=numbers)
    def renew(self, server: int, which: int) -> None:
        lease_id, _ = self.held[self._choose(which)]
        answer = self.broker.servers[server].extend(lease_id, {"seconds": 2 * AGE_S})
        assert answer.status == (200 if self.log.leases[lease_id].is_alive else 404), answer.raw

    # ---- time, and seeks ----

    @precondition(lambda self: self.held)
    @rule(which=numbers)
    def lapse(self, which: int) -> None:
        lease_id, _ = self.held[self._choose(which)]
        self.broker.lapse(lease_id)
        self.log.lapse(lease_id)

    @precondition(lambda self: self.held)
    @rule(which=numbers)
    def lapse_again(self, which: int) -> None:
        self.lapse(which)

    @rule()
    def end_waits(self) -> None:
        self.broker.end_waits(self.queue)
        self.log.end_waits()

    @precondition(lambda self: self.held)
    @rule(server=servers, to=numbers)
    def seek(self, server: int, to: int) -> None:
        offset = to % (len(self.log.messages) + 1)
        answer = self.broker.seek(server, GROUP, self.queue, "Default", offset=offset)
        assert answer.status == 200, answer.raw
        self.log.seek(offset)
        self._check_spans()

    def _check_spans(self) -> None:
        """What is not done is what the database knows of: in spans, or not handed out."""
        for committed, handed, in_flight, spans in self.broker.spans(self.queue, GROUP):
            undone = self.log.undone
            assert all(at >= committed for at in undone), (committed, undone)
            if handed is None:
                continue
            before = [at for at in undone if at < handed]
            assert sorted(spans) == before, (sorted(spans), before)
            assert in_flight == len(spans)

    def teardown(self) -> None:
        """Read everything that is left."""
        if not self.log.messages:
            return
        for _ in range(10 * len(self.log.messages) + 20):
            for lease in list(self.log.leases.values()):
                if lease.is_alive:
                    self.broker.lapse(lease.lease_id)
                    self.log.lapse(lease.lease_id)
            self.end_waits()
            if not self._pop(0, 6, auto=False):
                break
            self._ack(1, len(self.held) - 1, [(n, "completed") for n in range(6)])
        assert self.log.undone == []
        self._check_spans()


class KindsAgainstModel(SharedAgainstModel):
    """The same with a group that is of one kind and then of the other."""

    turns = True

    @rule(server=servers)
    def turn(self, server: int) -> None:
        kind = "order" if self.log.is_shared else "share"
        path = f"/api/v1/consumer-groups/{GROUP}/queues/{self.queue}/{kind}"
        answer = self.broker.servers[server].call("POST", path)
        if answer.status == 404:
            # Nobody has come by its name yet.
            return
        self.log.is_shared = not self.log.is_shared
        self.log.counts_hold = False


@pytest.mark.parametrize("machine", [SharedAgainstModel, KindsAgainstModel])
def test_any_order_of_events(broker: Broker, machine: type[SharedAgainstModel]) -> None:
    bound = type(machine.__name__, (machine,), {"broker": broker})
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=RUNS or DEFAULT_RUNS,
            stateful_step_count=STEPS,
            deadline=None,
            derandomize=not RUNS,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )

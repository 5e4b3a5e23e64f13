"""Random definitions on Spark: live with random cuts, as backfills, and compared."""

from __future__ import annotations

import gc
import json
import random
import traceback
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from pyspark.sql import SparkSession

from queen.errors import PipelineFailed
from queen.spark.pipelines.backfill import backfill, deliver, plain_rows
from queen.spark.pipelines.run import Options, Running, checked_definition, run_definition
from tests.api import Api
from tests.spark.history import canonical, messages, move, popped
from tests.spark.random_definitions.expressions import EPOCH, UNFIT, Message
from tests.spark.random_definitions.generator import Messages, made_up
from tests.spark.random_definitions.oracle import Given, Json, expected
from tests.spark.random_definitions.specs import Planned, Spec
from tests.waiting import spend

_LONGEST_S = 400
_ATTEMPTS = 3
_SHOWN = 4
_MS = timedelta(milliseconds=1)


@dataclass
class Broker:
    """Where everything is."""

    url: str
    dsn: str
    spark: SparkSession
    folder: Path


@dataclass
class Outcome:
    """What became of one definition."""

    spec: Spec
    differences: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)
    sent: list[Message] = field(default_factory=list)

    @property
    def line(self) -> str:
        numbers = ", ".join(f"{count} {name}" for name, count in self.numbers.items())
        verdict = "differs" if self.differences else "ok"
        return f"seed {self.spec.seed}: {self.spec.described()} ({numbers}): {verdict}"

    @property
    def report(self) -> str:
        """Say everything that is needed to look into a difference."""
        parts = [self.line, *self.differences, json.dumps(self.spec.definition())]
        for message in self.sent:
            parts.append(json.dumps(message._asdict(), default=str))
        return "\n".join(parts)


def tried_all(broker: Broker, seeds: Iterable[int], at_once: int) -> Iterator[Outcome]:
    """Yield what became of the definition of each seed; so many run at the same time."""
    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(lambda seed: tried(broker, seed), seeds)


def tried(broker: Broker, seed: int) -> Outcome:
    """Run the definition of a seed in all ways, and compare."""
    spec = made_up(seed, uuid.uuid4().hex[:6])
    outcome = Outcome(spec)
    try:
        _Trial(broker, outcome).run()
    except Exception as error:
        # Whatever it is: it is told, and the others go on.
        outcome.differences.append("".join(traceback.format_exception(error))[-3000:])
    # The JVM keeps what Python has not collected: plans, and tables that were sent to all tasks.
    gc.collect()
    return outcome


class _Trial:
    def __init__(self, broker: Broker, outcome: Outcome) -> None:
        self._broker = broker
        self._spark = broker.spark
        self._outcome = outcome
        self._spec = outcome.spec
        self._chance = random.Random(f"run {self._spec.seed}")
        self._api = Api(broker.url)
        self._checkpoint = broker.folder / self._spec.name
        self._made = Messages(self._spec)
        # Messages of a past that is made up, by their transactions.
        self._written: dict[str, datetime] = {}
        # Whether some run was stopped, so that nobody knows what it had counted.
        self._was_stopped = False
        self._runs: list[Running] = []

    def run(self) -> None:
        for queue in self._spec.queues():
            assert self._api.configure(queue).status in (200, 201)
        if self._spec.is_past:
            self._write_the_past()
            self._run_over_the_past()
        else:
            self._run_beside_pushes()
        sent = self._outcome.sent = self._sent()
        given = self._finished(sent)
        self._outcome.numbers.update(
            messages=len(sent),
            runs=len(self._runs),
            rows=len(given.results),
            late=len(given.late),
            failed=len(given.failed),
        )
        self._compare_live(given)
        self._compare_backfills(sent, given)
        self._api.close()

    # ---- messages ----

    def _write_the_past(self) -> None:
        planned = self._made.of_the_past()
        with psycopg.connect(self._broker.dsn, autocommit=True) as database:
            for written, group in groupby(planned, lambda one: one.written):
                together = list(group)
                for transaction in self._push(together):
                    self._written[transaction] = written
                move(database, {one.queue for one in together}, written)

    def _push(self, planned: Sequence[Planned]) -> list[str]:
        items = [
            {
                "queue": one.queue,
                "partition": one.partition,
                "transactionId": uuid.uuid4().hex,
                "payload": one.payload,
            }
            for one in planned
        ]
        answer = self._api.push(*items)
        assert answer.status == 201, answer.raw
        return [item["transactionId"] for item in items]

    def _sent(self) -> list[Message]:
        """Return the messages as the broker has them."""
        return [
            Message(
                queue,
                one["partition"],
                one["offset"],
                one["transactionId"],
                # Who consumes may be told when it was really written.
                self._written.get(one["transactionId"]) or datetime.fromisoformat(one["createdAt"]),
                one["data"],
            )
            for queue in self._spec.queues()
            for one in popped(self._api, queue)
        ]

    # ---- live ----

    def _start(self, **options: Any) -> Running:
        most = self._chance.randrange(self._made.count // 8, self._made.count // 2)
        running = run_definition(
            self._spec.definition(),
            self._spark,
            url=self._broker.url,
            checkpoint=str(self._checkpoint),
            starting="earliest",
            max_messages_per_trigger=most,
            **options,
        )
        self._runs.append(running)
        return running

    def _run_once(self) -> None:
        """Run to the end of what there is. A run that fails is started again, as anybody would."""
        for attempt in range(_ATTEMPTS):
            try:
                assert self._start(available_now=True).wait(_LONGEST_S), "the run does not end"
                return
            except PipelineFailed:
                # On a machine that is too busy Spark's own processes do not find each other.
                self._was_stopped = True
                if attempt == _ATTEMPTS - 1:
                    raise

    def _stop(self, running: Running) -> None:
        """Stop a run after its batch, or in the middle of it."""
        self._was_stopped = True
        if self._chance.random() < 0.4:
            running.query.stop()
        running.stop()

    def _run_over_the_past(self) -> None:
        for _ in range(self._chance.choice((0, 1, 1, 2))):
            running = self._start(available_now=True)
            is_over = False
            with suppress(PipelineFailed):
                is_over = running.wait(self._chance.uniform(0.5, 4))
            if not is_over:
                self._stop(running)
        self._run_once()

    def _run_beside_pushes(self) -> None:
        """Push while runs come and go, then let time pass until nothing waits any more."""
        chance, left, running = self._chance, self._made.count, None
        while left > 0:
            some = min(left, chance.randrange(8, 30))
            left -= some
            self._push_now(some)
            action = chance.choice(("once", "start", "stop", "nothing"))
            if action == "start" and running is None:
                running = self._start(every=chance.choice((0.1, 0.5)))
            elif action == "once" and running is None:
                self._run_once()
            elif action == "stop" and running is not None:
                self._stop(running)
                running = None
            spend(chance.uniform(0.1, 1.0))
        if running is not None:
            self._stop(running)
        spend(_longest_wait(self._spec).total_seconds())
        self._run_once()

    def _push_now(self, count: int) -> None:
        while count > 0:
            some = min(count, self._chance.randrange(1, 8))
            count -= some
            now = datetime.now(UTC)
            self._push([self._made.next(now) for _ in range(some)])

    def _finished(self, sent: list[Message]) -> Given:
        """Return what is expected of a run that has got as far as ours has."""
        if not self._spec.needs_time:
            return expected(self._spec, sent, datetime.now(UTC))
        for _ in range(5):
            # Each of the sources of a query is a little further than the last.
            sealed = _sealed_times(self._checkpoint)
            first, last = (expected(self._spec, sent, at) for at in (min(sealed), max(sealed)))
            if canonical(first.results) == canonical(last.results):
                return first
            self._run_once()
        raise AssertionError("something is decided at every instant")

    # ---- comparing ----

    def _differ(self, what: str, actual: Iterable[Any], wanted: Iterable[Any]) -> None:
        ours, theirs = Counter(canonical(actual)), Counter(canonical(wanted))
        for name, rows in (("is not expected", ours - theirs), ("is missing", theirs - ours)):
            for row in list(rows.elements())[:_SHOWN]:
                self._outcome.differences.append(f"{what}: {name}: {row}")

    def _compare_live(self, given: Given) -> None:
        spec = self._spec
        self._differ("live", self._messages(spec.output), given.results)
        if spec.late_to is not None:
            self._differ("late queue", self._messages(spec.late_to), given.late)
        if spec.errors_to is None:
            self._compare_letters(given)
        else:
            self._compare_errors(self._messages(spec.errors_to), given)
        dropped = sum(run.progress.dropped_rows for run in self._runs)
        self._differ("dropped by Spark", [dropped], [0])
        if not self._was_stopped:
            counts = {
                "late": sum(run.progress.late_rows for run in self._runs),
                "failed": sum(run.progress.failed_rows for run in self._runs),
                "results": sum(run.progress.output_rows for run in self._runs),
            }
            wanted = {
                "late": len(given.late),
                "failed": len(given.failed),
                "results": len(given.results),
            }
            self._differ("counted", [counts], [wanted])

    def _compare_errors(self, rows: list[Json], given: Given) -> None:
        for row in rows:
            self._check_reason(row.pop("error"), given.reasons.get(row["transactionId"], []))
        self._differ("errors queue", rows, given.failed)

    def _compare_letters(self, given: Given) -> None:
        fields = ("queue", "partition", "offset", "transactionId", "data")
        letters = []
        for queue in self._spec.queues():
            group = quote(self._spec.name)
            path = f"/api/v1/dlq?queue={quote(queue)}&consumerGroup={group}&limit=1000"
            with closing(self._api.twin()) as own:
                answer = own.call("GET", path)
            assert answer.status == 200, answer.raw
            letters += answer.json["messages"]
        for letter in letters:
            reasons = given.reasons.get(letter["transactionId"], [])
            self._check_reason(letter["errorMessage"], reasons)
        ours = [{name: letter[name] for name in fields} for letter in letters]
        theirs = [{name: row[name] for name in fields} for row in given.failed]
        self._differ("dead letters", ours, theirs)

    def _check_reason(self, error: str, reasons: list[str]) -> None:
        said = [text if text == UNFIT else f" cannot be computed: {text}" for text in reasons]
        if not any(error.startswith(text) or error.endswith(text) for text in said):
            self._differ("reason", [error], reasons)

    def _compare_backfills(self, sent: list[Message], given: Given) -> None:
        self._compare_whole_backfill(sent)
        for at in self._instants(given):
            wanted = expected(self._spec, sent, at)
            self._outcome.numbers["rows of a part"] += len(wanted.results)
            name = f"backfill to {at.isoformat()}"
            self._differ(name, self._backfilled(at), wanted.results)

    def _compare_whole_backfill(self, sent: list[Message]) -> None:
        """Compare with what is expected before and after: time goes on meanwhile."""
        before = expected(self._spec, sent, datetime.now(UTC)).results
        rows = self._backfilled(None)
        after = expected(self._spec, sent, datetime.now(UTC)).results
        is_early = canonical(rows) == canonical(before)
        self._differ("backfill to the end", rows, before if is_early else after)

    def _instants(self, given: Given) -> list[datetime]:
        """Return an instant at which something is just decided, or almost."""
        now = datetime.now(UTC) - timedelta(seconds=1)
        near = [at for at in given.instants if at < now]
        if not near:
            return []
        at = self._chance.choice(near)
        return [at + self._chance.choice((-_MS, timedelta(), _MS, _MS * 700))]

    def _backfilled(self, at: datetime | None) -> list[Any]:
        definition = checked_definition(self._spec.definition())
        options = Options(url=self._broker.url)
        compiled = backfill(definition, self._spark, options, None, at)
        if not compiled.is_message:
            return list(plain_rows(compiled))
        queue = f"{self._spec.name}-{uuid.uuid4().hex[:6]}"
        deliver(definition, compiled, options, queue, None)
        return self._messages(queue)

    def _messages(self, queue: str) -> list[Any]:
        """Return what is in a queue. Read by a connection of its own, which ends with it."""
        with closing(self._api.twin()) as own:
            return messages(own, queue)


def _longest_wait(spec: Spec) -> timedelta:
    """Return how long after the last message something may still be decided."""
    window = spec.window
    window_ms = 0 if window is None else max(window.size_ms, window.gap_ms)
    soon = timedelta(seconds=2.5)
    return soon + spec.grace + spec.wait() + timedelta(milliseconds=window_ms)


def _sealed_times(checkpoint: Path) -> list[datetime]:
    """Return how far each source of a query has got, as its last offsets say."""
    numbers = [int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
    lines = (checkpoint / "offsets" / str(max(numbers))).read_text().splitlines()
    offsets = [json.loads(line) for line in lines if '"sealed"' in line]
    return [EPOCH + timedelta(microseconds=offset["sealed"]) for offset in offsets]

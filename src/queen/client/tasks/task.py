"""A task: a function that is called by a worker, later and elsewhere.

A call becomes a message of its queue, with a payload that anybody may read and write:
`{"task": <name>, "arguments": {...}}`. Order is kept within a partition, so jobs are spread over
some (`partitions`) and as many can run at once; those of one `partition` run one after the other.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

import msgspec

from queen.client import tracing
from queen.client.durations import Seconds
from queen.client.queues.handler_rules import ErrorKinds, HandlerRules
from queen.client.queues.messages import Message, new_id
from queen.client.tasks.arguments import Arguments
from queen.client.tasks.job import Job
from queen.client.transport.wire_format import instant
from queen.core.tasks.jobs import DEFAULT_KEEP_S, MAX_KEEP_S, job_id_of

if TYPE_CHECKING:
    from queen.client.queues.queue import QueueBuilder

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_GROUP = "workers"
DEFAULT_PARTITIONS = 16

# A key, or what makes one of the arguments of a call.
Key = str | Callable[..., str]


class TaskOptions(NamedTuple):
    """How the jobs of a task are pushed, what is kept of them, and what happens when they fail."""

    # The only one, or over how many jobs are spread.
    partition: str | None = None
    partitions: int = DEFAULT_PARTITIONS
    # Of a key, one job at a time is scheduled, waiting or running.
    key: Key | None = None
    # For so long after its push the key is kept, even when the job is done.
    unique_for_s: float = 0.0
    # How long results are kept; 0 keeps none, and is quicker.
    keep_result_s: float = DEFAULT_KEEP_S
    # How often a job that fails is tried again, if its queue allows it.
    retries: int | None = None
    # As for any handler; what is not said here, the queue says.
    retry_on: ErrorKinds | None = None
    give_up_on: ErrorKinds | None = None
    timeout: Seconds | None = None

    def check(self) -> None:
        """Raise `ValueError` for what makes no sense."""
        if self.partitions < 1:
            raise ValueError("partitions must be 1 or more")
        if not 0 <= self.keep_result_s <= MAX_KEEP_S:
            raise ValueError(f"keep_result_s must be between 0 and {MAX_KEEP_S}")
        if not 0 <= self.unique_for_s <= MAX_KEEP_S:
            raise ValueError(f"unique_for_s must be between 0 and {MAX_KEEP_S}")
        if self.retries is not None and self.retries < 0:
            raise ValueError("retries must be 0 or more")
        self.rules_within(HandlerRules())

    def rules_within(self, rules: HandlerRules) -> HandlerRules:
        """Return what counts for its jobs on a queue that has rules of its own."""
        return rules.changed(self.retry_on, self.give_up_on, self.timeout)

    def choose_partition(self) -> str:
        """Return where a job goes: any partition is as good as another."""
        return self.partition or str(random.randrange(self.partitions))  # noqa: S311


class Call(msgspec.Struct, omit_defaults=True):
    """The payload of a job."""

    task: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    key: str | None = None


class BaseTask(Generic[P, R]):
    """What tasks are, with asyncio and without."""

    def __init__(
        self,
        queue: QueueBuilder,
        function: Callable[P, Any],
        name: str | None = None,
        options: TaskOptions | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.queue = queue
        self.function = function
        self.name = name or f"{function.__module__}.{function.__qualname__}"
        self.options = options or TaskOptions()
        self.options.check()
        try:
            self.arguments = Arguments(function)
        except TypeError as error:
            raise TypeError(f"{self.name} cannot be a task: {error}") from None
        self.is_async = inspect.iscoroutinefunction(function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} on {self.queue.name!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function here and now."""
        return self.function(*args, **kwargs)

    def _changed(self, changes: Mapping[str, Any]) -> BaseTask[P, R]:
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.options = self.options._replace(
            **{name: value for name, value in changes.items() if value is not None}
        )
        changed.options.check()
        return changed

    @property
    def group(self) -> str:
        """Under which name its workers share the jobs."""
        return self.queue._group or DEFAULT_GROUP

    # ---- calling it ----

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        """Return the payload of a call; raises `TypeError`, or `msgspec.ValidationError`, for
        arguments that the function does not take."""
        try:
            arguments = self.arguments.encode(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{self.name}: {error}") from None
        call = Call(self.name, msgspec.Raw(arguments), self._key_of(args, kwargs))
        return msgspec.json.encode(call)

    def _key_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        key = self.options.key
        return key(*args, **kwargs) if callable(key) else key

    async def _push(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        delay_s: float | None = None,
        at: datetime | None = None,
    ) -> Job[R]:
        payload = self.encode(*args, **kwargs)
        queen = self.queue._queen
        if queen.eager_jobs is not None:
            job: Job[R] = await queen.eager_jobs.run(self, payload)
            return job
        key = self._key_of(args, kwargs)
        partition = self.options.choose_partition()
        job_id = job_id_of(new_id(), partition)
        message = Message(msgspec.Raw(payload), transaction_id=job_id, delay=delay_s, deliver_at=at)
        if not tracing.is_on():
            return await self._push_message(message, partition, key)
        with tracing.pushing(self.queue._require_name(), None) as trace:
            return await self._push_message(message.with_headers(trace or {}), partition, key)

    async def _push_message(self, message: Message, partition: str, key: str | None) -> Job[R]:
        if key is not None:
            return await self._push_unique(message, partition, key)
        await self.queue._queen.push(self.queue._require_name(), partition, [message])
        return self._job(message.transaction_id, partition)

    async def _push_unique(self, message: Message, partition: str, key: str) -> Job[R]:
        at = message.deliver_at
        body = {
            "queue": self.queue._require_name(),
            "partition": partition,
            "transactionId": message.transaction_id,
            "payload": message.data,
            "headers": message.headers,
            "key": key,
            "consumerGroup": self.group,
            "holdS": self.options.unique_for_s,
            "delay": message.delay,
            "deliverAt": None if at is None else instant(at),
        }
        answer = await self.queue._queen.post("/api/v1/jobs", body)
        return self._job(answer["transactionId"], answer["partition"], existed=answer["existed"])

    def _job(self, job_id: str, partition: str, *, existed: bool = False) -> Job[R]:
        return Job(
            self.queue._queen,
            self.queue._require_name(),
            job_id,
            partition=partition,
            group=self.group,
            existed=existed,
            decode=self.arguments.decode_result,
        )


class Task(BaseTask[P, R]):
    """A function of a queue, for programs on asyncio. Calling it runs it here; `delay` pushes a
    job that a worker runs."""

    def with_options(
        self,
        *,
        partition: str | None = None,
        partitions: int | None = None,
        key: Key | None = None,
        unique_for_s: float | None = None,
        keep_result_s: float | None = None,
    ) -> Task[P, R]:
        """The same task with other options; this one stays as it is.

        Jobs of one `partition` run one after the other, in order. Of a `key`, one job at a time is
        scheduled, waiting or running: while one is, `delay` pushes nothing and returns that one,
        with `existed`. `unique_for_s` keeps the key so long after the push, even when the job is
        done. Results are kept for `keep_result_s`.
        """
        return self._changed(  # type: ignore[return-value]
            {
                "partition": partition,
                "partitions": partitions,
                "key": key,
                "unique_for_s": unique_for_s,
                "keep_result_s": keep_result_s,
            }
        )

    async def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Push a call; returns when it is stored."""
        return await self._push(args, kwargs)

    async def after(self, seconds: float | timedelta, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Push a call that is due after some seconds, by the broker's clock."""
        delay_s = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        return await self._push(args, kwargs, delay_s=delay_s)

    async def at(self, when: datetime, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Push a call that is due at an instant; without a zone it is local time."""
        return await self._push(args, kwargs, at=when)

    async def cron(
        self,
        name: str,
        cron: str,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Call it again and again, by the calendar of a zone: see `queue.cron`."""
        return await define_cron(self, name, cron, arguments, options)


async def define_cron(
    task: BaseTask[..., Any],
    name: str,
    cron: str,
    arguments: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Let a task be called by the calendar; its ticks take turns in one partition."""
    payload = msgspec.Raw(task.encode(**(arguments or {})))
    partition = task.options.partition or "0"
    answer: dict[str, Any] = await task.queue._queen.admin.define_schedule(
        name, task.queue._require_name(), cron, payload, partition=partition, **options
    )
    return answer

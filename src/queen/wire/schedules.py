"""Schedules on the wire: what is pushed again and again, and when."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from queen.core.tasks.jobs import MAX_SCHEDULE_NAME_BYTES
from queen.wire.paging import Pagination
from queen.wire.parts import Name

MAX_CATCH_UP = 1000
MAX_NEXT = 100
# What one schedule may push together: its payload, as often as it may have missed its time.
MAX_BYTES_AT_ONCE = 8 * 1024 * 1024

CatchUp = Literal["none", "last", "all"]

_NULL = msgspec.Raw(b"null")


class ScheduleRequest(msgspec.Struct, rename="camel"):
    """What to push when."""

    name: Annotated[
        str,
        Meta(
            description=f"One for all namespaces; at most {MAX_SCHEDULE_NAME_BYTES} bytes.",
            extra_json_schema={"minLength": 1, "maxLength": MAX_SCHEDULE_NAME_BYTES},
        ),
    ]
    queue: Name
    cron: Annotated[str, Meta(description="minute hour day month weekday, as in crontab.")]
    zone: Annotated[str, Meta(description="The time zone of these, as `Europe/Berlin`.")] = "UTC"
    payload: Annotated[msgspec.Raw, Meta(description="Any JSON; each message has it.")] = (
        msgspec.field(default_factory=lambda: _NULL)
    )
    partition: Annotated[Name, Meta(description="Left out, it is `Default`.")] | None = None
    catch_up: Annotated[
        CatchUp,
        Meta(
            description="What becomes of ticks that no server was there for: `none` of them is "
            "made up, the `last` one, or `all`."
        ),
    ] = "last"
    catch_up_limit: Annotated[
        int,
        Meta(
            description="How many `all` is at most; of more, the latest.",
            extra_json_schema={"minimum": 1, "maximum": MAX_CATCH_UP},
        ),
    ] = 100
    replace: Annotated[
        bool, Meta(description="Take the place of a schedule of this name that differs.")
    ] = False


class ScheduleStored(msgspec.Struct, rename="camel"):
    name: str
    created: bool
    changed: bool
    next_at: str


class ScheduleShown(msgspec.Struct, rename="camel"):
    """A schedule, and how it is doing."""

    name: str
    queue: str
    partition: str
    cron: str
    zone: str
    catch_up: CatchUp
    catch_up_limit: int
    state: Literal["active", "paused"]
    next_at: str | None
    last_at: str | None
    # Messages that were pushed, and ticks that were left out.
    ticks: int
    missed: int
    payload_bytes: int
    created_at: str
    updated_at: str


class SchedulePage(msgspec.Struct):
    schedules: list[ScheduleShown]
    pagination: Pagination


class ScheduleTicks(msgspec.Struct):
    """When a schedule comes due next."""

    name: str
    ticks: list[str]


class ScheduleDeleted(msgspec.Struct):
    deleted: bool
    name: str

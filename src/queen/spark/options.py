"""The options of `format("queen")`: which there are, what for, and what their texts mean.

An option that is not known, or means nothing where it is given, is an error. Ignored, a
misspelled limit would be no limit, and a misspelled time all of history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum

from queen.wire.groups import MAX_OFFSET

EARLIEST = 0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Use(Enum):
    """What options are given for."""

    BATCH_READ = "reading a batch"
    WINDOW_READ = "reading windows"
    STREAM_READ = "reading a stream"
    BATCH_WRITE = "writing a batch"
    STREAM_WRITE = "writing a stream"


_READS = (Use.BATCH_READ, Use.WINDOW_READ, Use.STREAM_READ)
_WRITES = (Use.BATCH_WRITE, Use.STREAM_WRITE)
_HISTORY = (Use.BATCH_READ, Use.WINDOW_READ)

_USES: dict[str, tuple[Use, ...]] = {
    "url": tuple(Use),
    "token": tuple(Use),
    "queue": (Use.BATCH_READ, Use.STREAM_READ, *_WRITES),
    "queuePattern": (Use.BATCH_READ, Use.STREAM_READ),
    "partition": (Use.BATCH_READ, Use.STREAM_READ),
    "startingTime": _READS,
    "endingTime": _HISTORY,
    "startingOffset": (Use.BATCH_READ,),
    "endingOffset": (Use.BATCH_READ,),
    "stream": (Use.WINDOW_READ,),
    "lease": (Use.WINDOW_READ,),
    "ranges": (Use.BATCH_READ,),
    "group": (Use.STREAM_READ, Use.WINDOW_READ),
    "maxMessagesPerTrigger": (Use.STREAM_READ,),
    "maxBytesPerTrigger": (Use.STREAM_READ,),
    "headers": _READS,
    "markers": (Use.STREAM_READ,),
    "markerInterval": (Use.STREAM_READ,),
    "failOnDataLoss": _READS,
    "tasks": _READS,
    "minTasks": (Use.BATCH_READ, Use.STREAM_READ),
    "maxTasks": (Use.BATCH_READ, Use.STREAM_READ),
    "dataFormat": _WRITES,
    "transactionName": _WRITES,
    "transactionBatch": (Use.BATCH_WRITE,),
    "retrySeconds": _WRITES,
    "traceparent": _WRITES,
    "tracestate": _WRITES,
}
# Of Spark, and handed on to the sink of a stream.
_SPARKS = frozenset(("checkpointlocation", "queryname", "outputmode"))
# Of leased windows, which stage what the ack of the window publishes, and of pipelines.
_OWN = frozenset(("stageto", "stagerun", "firsttask", "deadlettersof"))
_SPELLING = {name.lower(): name for name in _USES}


def check_options(options: Mapping[str, str], use: Use) -> None:
    """Raise `ValueError` for an option that is not known, or means nothing here."""
    if "path" in options:
        raise ValueError("a queue has no path: name it with option queue")
    for name in options:
        is_sparks = use is Use.STREAM_WRITE and name.lower() in _SPARKS
        if is_sparks or name.lower() in _OWN:
            continue
        known = _SPELLING.get(name.lower())
        if known is None:
            raise ValueError(_unknown(name, use))
        if use not in _USES[known]:
            others = " and ".join(other.value for other in _USES[known])
            raise ValueError(f"option {known} is for {others}, not for {use.value}")


def check_company(options: Mapping[str, str], name: str, other: str) -> None:
    """Raise `ValueError` for an option that is given without the one that gives it a meaning."""
    if name.lower() in options and not options.get(other.lower()):
        raise ValueError(f"option {name} means nothing without {other}")


def _unknown(name: str, use: Use) -> str:
    here = [option for option, uses in _USES.items() if use in uses]
    lower = {option.lower(): option for option in here}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    hint = f"did you mean {lower[close[0]]}?" if close else f"there are {', '.join(here)}"
    return f"option {name!r} is not known: {hint}"


def queue_names(text: str) -> tuple[str, ...]:
    """Return names with commas between them, or those of a JSON list, which may hold any name."""
    if text.startswith("["):
        return names_of("queue", text)
    return tuple(name.strip() for name in text.split(",") if name.strip())


def queue_option(*names: str) -> str:
    """Return names as the option takes them; there may be commas in them."""
    return json.dumps(names)


def names_of(option: str, text: str) -> tuple[str, ...]:
    """Return one name, or those of a JSON list."""
    if text.startswith("["):
        try:
            names = json.loads(text)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'option {option}: a name, or a list of them as JSON: ["a", "b"]')
        return tuple(names)
    return (text,) if text else ()


def number(options: Mapping[str, str], name: str, at_least: int = 0) -> int | None:
    text = options.get(name.lower())
    if text is None or text == "":
        return None
    if not text.isdecimal():
        raise ValueError(f"option {name}: {text!r} is not a whole number")
    if int(text) < at_least:
        raise ValueError(f"option {name}: {text} is less than {at_least}")
    if int(text) > MAX_OFFSET:
        raise ValueError(f"option {name}: {text} is more than {MAX_OFFSET}")
    return int(text)


def truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"option {name}: {text!r} is neither true nor false")
    return text == "true"


def time_of(options: Mapping[str, str], name: str) -> int | str | None:
    """Return an instant in microseconds, or the words earliest and latest; None without one."""
    text = options.get(name.lower(), "").strip()
    if text.lower() in ("", "earliest", "latest"):
        return text.lower() or None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"option {name}: {text!r} is not earliest, latest or a time like 2026-01-31T12:00:00Z"
        ) from None
    # Nothing is older than the epoch.
    return max(microseconds(at), EARLIEST)


def times_of(options: Mapping[str, str]) -> tuple[int | str | None, int | str | None]:
    """Return where a read of history starts and ends; raises when nothing lies between."""
    since, until = time_of(options, "startingTime"), time_of(options, "endingTime")
    is_backwards = isinstance(since, int) and isinstance(until, int) and since > until
    if is_backwards or until == "earliest" or (since == "latest" and isinstance(until, int)):
        raise ValueError(
            f"option startingTime, {options.get('startingtime', 'earliest')}, is after endingTime, "
            f"{options.get('endingtime', 'latest')}: nothing lies between"
        )
    return since, until


def microseconds(at: datetime) -> int:
    """Return an instant as a number; without a zone it is UTC."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def text_of(at_us: int) -> str:
    return (_EPOCH + at_us * _MICROSECOND).isoformat().replace("+00:00", "Z")

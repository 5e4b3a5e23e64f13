"""What a definition does, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from queen.wire.pipelines import Definition, Joined, Reads


def explain_definition(definition: Definition) -> list[str]:
    """Return one line for each step, in the order in which they act."""
    lines = [_read_line(side) for side in definition.reads]
    if definition.kind == "function":
        lines.append(f"hands them to the function {definition.name}")
    if definition.time_zone != "UTC":
        lines.append(f"expressions take times that name no zone as those of {definition.time_zone}")
    joins = zip(definition.joins, definition.reads[1:], strict=False)
    lines += [_join_line(join, side) for join, side in joins]
    lines += _time_lines(definition)
    lines += _aggregate_lines(definition)
    lines += _selection_lines(definition)
    lines += _failure_lines(definition)
    lines.append(_output_line(definition))
    return lines


def _failure_lines(definition: Definition) -> list[str]:
    if definition.kind == "function":
        return []
    if definition.on_error == "fail":
        return ["a message on which an expression fails ends it"]
    where = f"in {definition.errors_to}" if definition.errors_to else "as a dead letter"
    return [f"a message on which an expression fails is set aside {where}"]


def _read_line(side: Reads) -> str:
    queues = f"queues like {side.pattern}" if side.pattern else ", ".join(side.queues)
    line = f"reads {queues} as {side.name}"
    line += f" with data ({side.schema})" if side.schema else " with data as JSON text"
    if side.event_time:
        line += f"; it happened at {side.event_time}"
    return line + (f"; only where {' and '.join(side.where)}" if side.where else "")


def _join_line(join: Joined, side: Reads) -> str:
    on = " and ".join(f"{ours} = {theirs}" for ours, theirs in join.on)
    return f"joins {side.name} ({join.how}) where {on}, at most {_duration(join.within_ms)} apart"


def _time_lines(definition: Definition) -> list[str]:
    window, grace = definition.window, _duration(definition.grace_ms)
    lines = []
    if definition.dedup:
        where = (
            "in each window of a key"
            if window and window.type != "session"
            else "of each event time"
        )
        lines.append(f"uses only one message {where} with the same {', '.join(definition.dedup)}")
    if window is None:
        if definition.joins or definition.dedup:
            lines.append(f"a message is late when it was written {grace} after its own time")
        return lines
    if window.type == "session":
        lines.append(
            f"cuts sessions that end when nothing came for {_duration(window.gap_ms or 0)}"
        )
    elif window.type == "calendar":
        monday = ", from Monday," if window.unit == "week" else ""
        lines.append(f"cuts windows of one {window.unit}{monday} in {definition.time_zone}")
    elif window.type == "sliding":
        size, slide = _duration(window.size_ms or 0), _duration(window.slide_ms or 0)
        lines.append(f"cuts windows of {size}, one every {slide}")
    else:
        lines.append(f"cuts windows of {_duration(window.size_ms or 0)}")
    late = "its own time" if window.type == "session" or definition.joins else "its window's end"
    lines.append(f"a window closes when everything up to its end plus {grace} is sealed")
    lines.append(f"a message is late when it was written {grace} after {late}, or later")
    return lines


def _aggregate_lines(definition: Definition) -> list[str]:
    computed = [f"{name} = {text}" for name, text in definition.aggregates.items()]
    computed += [f"{name} = distinct {text}" for name, text in definition.distinct.items()]
    if not computed:
        return []
    keys = [f"{name} ({text})" if name != text else name for name, text in definition.keys.items()]
    return [f"computes {', '.join(computed)} {'for each ' + ', '.join(keys) if keys else 'in all'}"]


def _selection_lines(definition: Definition) -> list[str]:
    lines = []
    if definition.having:
        lines.append(f"keeps results where {' and '.join(definition.having)}")
    if definition.top is not None:
        per = f" for each {', '.join(definition.top.per)}" if definition.top.per else ""
        lines.append(f"keeps the {definition.top.count} with the most {definition.top.by}{per}")
    if definition.select:
        chosen = ", ".join(f"{name} = {text}" for name, text in definition.select.items())
        lines.append(f"gives {chosen}")
    return lines


def _output_line(definition: Definition) -> str:
    output = definition.output
    if output.queue:
        line = f"writes to the queue {output.queue}, each result once"
    elif output.table:
        keys = f" by {', '.join(output.table_keys)}" if output.table_keys else ""
        when = "whenever a window has changed" if _updates(definition) else "each result once"
        line = f"writes to the table {output.table}{keys}, {when}"
    else:
        line = f"writes {output.format} files to {output.files}, each result once"
    late = f"; late messages to {definition.late_to}" if definition.late_to else ""
    return line + late


def _updates(definition: Definition) -> bool:
    return definition.emit == "updates"


def _duration(duration_ms: int) -> str:
    """Return a duration as people say it.

    >>> _duration(90_000), _duration(3_600_000), _duration(250)
    ('90 s', '1 h', '250 ms')
    """
    for unit, size_ms in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % size_ms == 0:
            return f"{duration_ms // size_ms} {unit}"
    return f"{duration_ms} ms"

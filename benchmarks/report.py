"""The two tables: what was measured, and how it stands to what was aimed at."""

import json
import platform
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil  # type: ignore[import-untyped,unused-ignore]
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.scenarios import Measurement

_RSS_AIM_MB = 200
_FETCH_AIM = 1_000_000
_CLIENT_AIM = 20_000


@dataclass(frozen=True)
class Summary:
    """The medians of a scenario over its rounds."""

    rows: list[Measurement]

    def median(self, value: Callable[[Measurement], float | None]) -> float | None:
        values = [number for row in self.rows if (number := value(row)) is not None]
        return statistics.median(values) if values else None

    @property
    def messages_per_s(self) -> float:
        return statistics.median(row.messages_per_s for row in self.rows)

    @property
    def rss_mb(self) -> float:
        return max(row.server_rss_bytes for row in self.rows) / 1e6

    @property
    def errors(self) -> int:
        return sum(row.errors for row in self.rows)


Summaries = dict[str, Summary]


def summarize(results: list[Measurement]) -> Summaries:
    return {
        name: Summary([row for row in results if row.scenario == name])
        for name in dict.fromkeys(row.scenario for row in results)
    }


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


_COLUMNS: list[tuple[str, Callable[[Measurement], float | None], int]] = [
    ("msg/s", lambda row: row.messages_per_s, 0),
    ("req/s", lambda row: row.requests_per_s, 0),
    ("p50 ms", lambda row: row.p50_ms, 2),
    ("p99 ms", lambda row: row.p99_ms, 2),
    ("server CPU %", lambda row: row.server_cpu_percent, 0),
    ("PG CPU %", lambda row: row.postgres_cpu_percent, 0),
    ("client CPU %", lambda row: row.client_cpu_percent, 0),
    ("server RSS MB", lambda row: row.server_rss_bytes / 1e6, 0),
    ("bytes/msg", lambda row: row.stored_bytes_per_message, 0),
]


def rates_table(summaries: Summaries) -> Table:
    table = Table(title="Rates (medians over the rounds; 100 % CPU is one core)")
    table.add_column("scenario", no_wrap=True)
    table.add_column("rounds", justify="right")
    for title, _, _ in _COLUMNS:
        table.add_column(title, justify="right")
    for name, summary in summaries.items():
        cells = [_number(summary.median(value), digits) for _, value, digits in _COLUMNS]
        style = "red" if summary.errors else None
        table.add_row(name, str(len(summary.rows)), *cells, style=style)
    return table


@dataclass(frozen=True)
class Aim:
    what: str
    value: float | None
    aim: float | None = None
    at_most: bool = False
    unit: str = "x"
    by_round: tuple[float, ...] = ()
    """The same ratio within each round: how far the machine's noise moves it."""

    @property
    def met(self) -> bool | None:
        if self.value is None or self.aim is None:
            return None
        return self.value < self.aim if self.at_most else self.value >= self.aim


def _ratio(summaries: Summaries, what: str, *, of: str, to: str, aim: float | None = None) -> Aim:
    if of not in summaries or to not in summaries or not summaries[to].messages_per_s:
        return Aim(what, None, aim)
    above, below = summaries[of], summaries[to]
    by_round = tuple(
        one.messages_per_s / other.messages_per_s
        for one, other in zip(above.rows, below.rows, strict=False)
        if other.messages_per_s
    )
    value = above.messages_per_s / below.messages_per_s
    return Aim(what, value, aim, by_round=by_round)


def aims(summaries: Summaries, many: int) -> list[Aim]:
    push100, off = "push100/p100/c16", "dedup-off/push100"
    few, lots = "partitions-10", f"partitions-{many}"

    def ratio(what: str, of: str, to: str, aim: float | None = None) -> Aim:
        return _ratio(summaries, what, of=of, to=to, aim=aim)

    return [
        ratio("push 100 per request / rows, 100 per statement", push100, "rows100", 3.0),
        ratio("push 1 per request / rows, 1 per statement", "push1/p100/c64", "rows1", 1.4),
        ratio("dedup window / off", push100, off, 0.85),
        ratio("dedup forever / off", "dedup-forever/push100", off),
        ratio("frames of 100 / JSON push of 100", "frames100", push100, 2.0),
        _rate(summaries, "fetch of frames", "fetch", _FETCH_AIM),
        ratio("pop + ack / push 100", "pop-ack", push100, 0.5),
        ratio("pop with autoAck / push 100", "pop-autoack", push100, 0.8),
        ratio(f"push, {many:,} / 10 partitions", f"{lots}/push100", f"{few}/push100", 0.7),
        ratio(f"pop + ack, {many:,} / 10 partitions", f"{lots}/pop-ack", f"{few}/pop-ack", 0.7),
        ratio("client: consume / raw pop + ack", "client/consume", "pop-ack", 0.3),
        ratio("client: buffered push / raw JSON push 100", "client/push-buffered", push100, 0.5),
        ratio("client: lists of 100 / rows, 100 per statement", "client/push-list", "rows100", 1.0),
        ratio("client: 64 tasks, 1 each / raw push 1", "client/push-one", "push1/p100/c64", 1.0),
        _rate(summaries, "client: consume", "client/consume", _CLIENT_AIM),
        _rate(summaries, "client: buffered push", "client/push-buffered", _CLIENT_AIM),
        _rss(summaries),
        _stored(summaries, push100),
    ]


def _rate(summaries: Summaries, what: str, name: str, aim: float) -> Aim:
    found = summaries.get(name)
    rate = found.messages_per_s if found else None
    return Aim(what, rate, aim, unit=" msg/s")


def _rss(summaries: Summaries) -> Aim:
    pushes = [s.rss_mb for name, s in summaries.items() if "push" in name or "frames" in name]
    value = max(pushes, default=None)
    return Aim("server RSS, highest of all pushes", value, _RSS_AIM_MB, True, " MB")


def _stored(summaries: Summaries, push100: str) -> Aim:
    def stored(name: str) -> float | None:
        summary = summaries.get(name)
        return summary.median(lambda row: row.stored_bytes_per_message) if summary else None

    ours, theirs = stored(push100), stored("rows100")
    value = ours / theirs if ours is not None and theirs else None
    return Aim("bytes stored per message / rows", value, at_most=True)


def aims_table(reached: list[Aim]) -> Table:
    table = Table(title="Aims")
    for title in ("what", "measured", "aim", "", "by round"):
        table.add_column(title, justify="right" if title in ("measured", "aim") else "left")
    words = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
    for row in reached:
        digits = 2 if row.unit == "x" else 0
        value = "not run" if row.value is None else _number(row.value, digits) + row.unit
        sign = "<" if row.at_most else "≥"
        aim = "" if row.aim is None else f"{sign} {_number(row.aim, digits)}{row.unit}"
        by_round = " ".join(_number(ratio, 2) for ratio in row.by_round)
        table.add_row(row.what, value, aim, words[row.met], by_round)
    return table


def machine() -> dict[str, object]:
    """Where and of what the numbers are; a rate without these says nothing."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "load_before": psutil.getloadavg()[0],
    }


def write_json(
    file: Path, about: dict[str, object], results: list[Measurement], reached: list[Aim]
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": about,
        "results": [asdict(row) for row in results],
        "aims": [asdict(aim) | {"met": aim.met} for aim in reached],
    }
    file.write_text(json.dumps(document, indent=1) + "\n")


def print_all(console: Console, results: list[Measurement], many: int) -> list[Aim]:
    summaries = summarize(results)
    reached = aims(summaries, many)
    console.print(rates_table(summaries))
    console.print(aims_table(reached))
    for name, summary in summaries.items():
        if summary.errors:
            first = next(row.first_error for row in summary.rows if row.errors)
            text = f"{name}: {summary.errors} refused answers, first: {first}"
            console.print(escape(text), style="red")
    return reached

"""Tables fit the terminal, and no word of them is cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.cli.cells import as_age, as_bytes, as_duration, cell
from queen.cli.commands.dlq import _ERRORS
from queen.cli.commands.pipelines import _with_all_numbers
from queen.cli.operate.status import _problems
from queen.cli.tables import (
    Column,
    problem_lines,
    record_lines,
    shorten,
    table_lines,
    width_of,
    wrap,
)

_COLUMNS = (
    Column("queue", "name"),
    Column("dead letters", "dead", "number"),
    Column("oldest", "seconds", "duration"),
    Column("error", "error"),
    Column("partitions behind", "behind", "number"),
)
_words = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=30)
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.one_of(_words, st.text("日本語x", min_size=1, max_size=120)),
            "dead": st.integers(0, 10**15),
            "seconds": st.floats(0, 1e9),
            "error": st.lists(_words, max_size=20).map(" ".join),
            "behind": st.integers(0, 10**9),
        }
    ),
    max_size=5,
)


@given(_rows, st.integers(40, 160))
def test_no_line_is_wider_than_the_terminal(rows: list[dict[str, object]], width: int) -> None:
    assert all(width_of(line) <= width for line in table_lines(rows, _COLUMNS, width))


@given(_rows, st.integers(60, 160))
def test_a_word_is_whole_or_has_an_ellipsis(rows: list[dict[str, object]], width: int) -> None:
    known = {word for column in _COLUMNS for word in column.head.split()}
    for row in rows:
        for column in _COLUMNS:
            known.update(cell(row[column.path]).split())
            known.update((as_duration(row["seconds"]), cell(row["dead"])))
    note = "not shown for want of room: --json has all"
    known.update(note.split())
    for line in table_lines(rows, _COLUMNS, width):
        for word in line.split():
            plain = word.rstrip(",;")
            assert "…" in word or word in known or plain in known, (word, line)


def test_columns_are_left_out_from_the_right_and_named() -> None:
    rows = [{"name": "orders", "dead": 1, "seconds": 5, "error": "x", "behind": 2}]
    wide, narrow = table_lines(rows, _COLUMNS, 120), table_lines(rows, _COLUMNS, 40)
    assert "partitions behind" in wide[0]
    assert "partitions behind" not in narrow[0]
    assert "partitions behind" in " ".join(narrow[2:])
    assert "queue" in narrow[0]


def test_numbers_stand_at_the_right() -> None:
    rows = [{"name": "a", "dead": 5}, {"name": "b", "dead": 1_234_567}]
    _, first, second = table_lines(rows, _COLUMNS[:2], 80)
    assert first.endswith("        5")
    assert second.endswith("1,234,567")
    assert len(first) == len(second)


def test_a_cell_of_many_lines_ends_with_an_ellipsis() -> None:
    lines = table_lines([{"error": "word " * 100}], [Column("error", "error")], 30)
    assert len(lines) == 4
    assert lines[-1].endswith("…")


def test_what_could_move_the_cursor_is_escaped() -> None:
    assert cell("a\x1b[2Jb\nc") == "a\\u001b[2Jb\\u000ac"


def test_the_group_of_nobody_is_not_called_by_its_name_on_the_wire() -> None:
    assert cell("__QUEUE_MODE__") == "(no group)"


def test_a_record_wraps_between_words_and_leaves_long_ones_whole() -> None:
    lines = record_lines({"name": "x" * 100, "about": "one two three four five"}, 24)
    assert "x" * 100 in lines[0]
    assert lines[1:] == ["about  one two three", "       four five"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m"), (7200, "2h"), (1e6, "11d")]
)
def test_durations(seconds: float, text: str) -> None:
    assert as_duration(seconds) == text


def test_ages_and_sizes() -> None:
    assert as_age(None) == "-"
    assert as_age("not a time") == "not a time"
    assert as_bytes(10**18) == "1,000.0 PB"
    assert wrap("", 10) == [""]
    assert shorten("abcdefgh", 2) == "…"


def test_instants_of_a_record_are_ages() -> None:
    (shown,) = record_lines({"createdAt": "2020-01-01T00:00:00.695422Z"}, 80)
    assert re.fullmatch(r"createdAt  \d+d", shown)


def test_problems_name_the_group_and_its_age() -> None:
    lagging = {
        "group": "__QUEUE_MODE__",
        "queue": "orders",
        "oldestSeconds": 1954.0,
        "paused": False,
        "breakerOpenSince": None,
    }
    quiet = {
        "database": "there",
        "spoolProblem": None,
        "spoolQuarantined": 0,
        "maintenance": False,
        "popMaintenance": False,
        "daysUntilFull": None,
        "deadLetters": 0,
    }
    (problem,) = _problems({**quiet, "laggingGroups": [lagging]})
    assert problem == ("group (no group) is 32m behind in orders: queen group show '(no group)'")


def test_a_problem_that_is_watched_fits_the_screen() -> None:
    problem = f"group {'G' * 200} is 32m behind in {'Q' * 200}: queen group show {'G' * 200}"
    lines = problem_lines([problem], 60, fold=True)
    assert len(lines) <= 6
    assert all(width_of(line) <= 60 for line in lines)


def test_a_pipeline_that_has_run_has_all_its_numbers() -> None:
    listed = _with_all_numbers({"name": "p", "progress": {"runId": "r", "state": "running"}})
    numbers = [listed["progress"][name] for name in ("behindMessages", "inputRows", "lateRows")]
    assert numbers == [0, 0, 0]
    assert _with_all_numbers({"progress": None}) == {"progress": None}


def test_letters_of_all_queues_say_whose_they_are() -> None:
    assert "queue" in [column.head for column in _ERRORS]

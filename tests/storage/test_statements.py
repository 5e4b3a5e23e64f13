"""Every named statement prepares, and the hot ones use the index they are meant to."""

from __future__ import annotations

import ast
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import asyncpg
import pytest

import queen
from queen.storage.database import Database, session_settings
from queen.storage.embedded import EmbeddedPostgres
from queen.storage.migrate import migrate
from queen.storage.statements import parse_statements, sql_files, statements

_PARTITIONS = 20_000
_SEGMENTS_EACH = 5


@pytest.mark.parametrize("name", sorted(statements()))
async def test_every_statement_prepares(connection: asyncpg.Connection, name: str) -> None:
    await connection.prepare(statements()[name].sql)


def test_a_statement_file_says_name_and_arity() -> None:
    (found,) = parse_statements("-- name: one :many\n-- Why.\nselect 1\n")
    assert (found.name, found.returns, found.sql) == ("one", "many", "-- Why.\nselect 1")


# ---- files ----

_SQL = Path(queen.__file__).parent / "storage/sql"


@pytest.mark.parametrize("kind", ["functions", "queries"])
def test_each_folder_of_sql_has_its_room_and_is_not_crowded(kind: str) -> None:
    service = Path(queen.__file__).parent / "service"
    rooms = {path.stem for path in service.iterdir()}
    counts = Counter(
        path.relative_to(_SQL / kind).parts[0]
        for path in _SQL.rglob("*.sql")
        if path.is_relative_to(_SQL / kind)
    )
    assert set(counts) <= rooms
    assert max(counts.values()) <= 15


def test_the_name_of_a_file_does_not_say_its_folder(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "b.sql").write_text("b")
    (tmp_path / "room/a.sql").write_text("a")
    assert sql_files(tmp_path) == [("a.sql", "a"), ("b.sql", "b")]
    (tmp_path / "room/b.sql").write_text("another")
    with pytest.raises(ValueError, match=r"two SQL files .* b\.sql"):
        sql_files(tmp_path)


def test_what_groups_have_before_them_is_their_backlog() -> None:
    """A word that meant three things; one table has it in its name, and tables keep theirs."""
    for path in [*_SQL.glob("functions/*/*.sql"), *_SQL.glob("queries/*/*.sql")]:
        assert "lane" not in path.read_text().replace("query_lanes", ""), path


@pytest.mark.parametrize("line", ["-- name: a :two", "-- name: a", "--name: a :one", "-- name:a"])
def test_a_name_line_that_is_not_quite_one_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a name line"):
        parse_statements(f"-- name: before :one\nselect 1\n{line}\nselect 2\n")


def test_a_statement_that_writes_says_whether_it_may_be_sent_again() -> None:
    once, again = parse_statements("-- name: a :one once\ninsert\n-- name: b :exec again\nupdate\n")
    assert (once.repeated, again.repeated) == ("once", "again")


# ---- kinds ----

_KINDS = {
    "fetch": "many",
    "fetchrow": "one",
    "fetchval": "one",
    "findrow": "maybe",
    "findval": "maybe",
    "execute": "exec",
}


@cache
def _calls() -> list[tuple[str, str, str]]:
    """Return where each statement is called by its name, with which method, and the name."""
    root = Path(queen.__file__).parent
    return [call for path in sorted(root.rglob("*.py")) for call in _calls_in(path)]


def _calls_in(path: Path) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=method), args=[ast.Constant(value=str(name)), *_]
            ) if method.lstrip("_") in _KINDS and name in statements():
                yield f"{path.name}:{node.lineno}", method.lstrip("_"), name


def test_every_call_is_of_the_kind_that_its_statement_is() -> None:
    assert len(_calls()) > 200
    wrong = [
        f"{where}: {method}({name!r}), which is :{statements()[name].returns}"
        for where, method, name in _calls()
        if _KINDS[method] != statements()[name].returns
    ]
    assert wrong == []


def test_every_statement_is_called() -> None:
    root = Path(queen.__file__).parent
    source = "\n".join(path.read_text() for path in root.rglob("*.py"))
    assert [name for name in statements() if f'"{name}"' not in source] == []


async def test_a_value_is_the_only_column(connection: asyncpg.Connection) -> None:
    for where, method, name in _calls():
        if method in ("fetchval", "findval"):
            prepared = await connection.prepare(statements()[name].sql)
            assert len(prepared.get_attributes()) == 1, f"{where}: {name}"


async def test_what_returns_nothing_returns_no_columns_that_could_be_meant(
    connection: asyncpg.Connection,
) -> None:
    """A function that is called for what it does has a result all the same; nothing else has."""
    for name, statement in statements().items():
        if statement.returns == "exec":
            prepared = await connection.prepare(statement.sql)
            text = re.sub(r"--.*\n", "", statement.sql)
            assert not prepared.get_attributes() or text.startswith("select"), name


@pytest.mark.parametrize("method", _KINDS)
async def test_a_call_of_another_kind_is_refused(database: Database, method: str) -> None:
    others = {"many": "read_state", "one": "now", "maybe": "find_group", "exec": "touch_groups"}
    for kind, name in others.items():
        assert statements()[name].returns == kind
        if kind != _KINDS[method]:
            with pytest.raises(LookupError, match=f"{name}.*:{_KINDS[method]}"):
                await getattr(database, method)(name)
            async with database.transaction() as transaction:
                with pytest.raises(LookupError, match=name):
                    await getattr(transaction, method)(name)


async def test_each_kind_returns_what_it_says(database: Database) -> None:
    assert isinstance(await database.fetch("read_state"), list)
    assert len(await database.fetchrow("now")) == 1
    assert await database.fetchval("any_encrypted") in (True, False)
    assert await database.findrow("find_group", 0, "nobody") is None
    assert await database.findval("find_group", 0, "nobody") is None
    await database.execute("touch_groups", [])


# ---- repeating ----


_WRITES = re.compile(r"\b(insert into|update queen|delete from)\b")
_CALLED = re.compile(r"queen\.(\w+)\(")


async def test_every_statement_that_writes_says_it(connection: asyncpg.Connection) -> None:
    rows = await connection.fetch(
        "select proname from pg_proc"
        " where pronamespace = 'queen'::regnamespace and provolatile = 'v'"
    )
    # A function that writes cannot be stable or immutable.
    writing = {row["proname"] for row in rows}
    for name, statement in statements().items():
        text = re.sub(r"--.*", "", statement.sql)
        writes = bool(_WRITES.search(text) or writing & set(_CALLED.findall(text)))
        assert writes == (statement.repeated is not None), name


async def test_what_would_count_twice_is_not_sent_again() -> None:
    kept = {name for name, one in statements().items() if one.repeated == "once"}
    assert {
        *("append", "claim", "ack_spans", "stage", "publish", "claim_window"),
        *("append_lone", "claim_lone", "ack_lone", "claim_shared", "ack_shared"),
        # They would answer that there was nothing to do, or that the lease was lost.
        *("release_lease", "release_window", "delete_queue", "delete_stream", "cancel_scheduled"),
        # They would write a second row, or take a second page.
        *("record_trace", "write_audit", "purge_dead_letters", "clear_queue"),
    } <= kept


@pytest.fixture(scope="module")
async def large(postgres: EmbeddedPostgres) -> AsyncIterator[asyncpg.Connection]:
    """A database of its own with twenty thousand partitions and a hundred thousand segments."""
    name = f"large_{uuid.uuid4().hex[:8]}"
    admin = await asyncpg.connect(postgres.dsn)
    await admin.execute(f"create database {name}")
    opened = await asyncpg.connect(postgres.dsn, database=name, server_settings=session_settings())
    await migrate(opened)
    await opened.execute(
        """
        insert into queues (name) values ('big');
        insert into groups (queue_id, name) values (1, 'g');
        insert into partitions (queue_id, name, head)
            select 1, 'p' || i, $PER$::bigint * 10 from generate_series(1, $N$) i;
        insert into cursors (partition_id, group_id, committed)
            select id, 1, 0 from partitions;
        insert into segments
            (partition_id, base_offset, end_offset, created_at, queue_id, codec, hashes, body)
            select p.id, s * 10, s * 10 + 10, now() - interval '1 hour' + (p.id * s) * interval
                   '1 millisecond', 1, 0, '', 'x'
              from partitions p, generate_series(0, $PER$ - 1) s;
        insert into shared_spans
            (partition_id, group_id, first_offset, end_offset, lease_id, due_at, attempts)
            select p.id, 2, s * 10, s * 10 + 10, gen_random_uuid(), now() + interval '1 hour', 1
              from partitions p, generate_series(0, $PER$ - 1) s;
        analyze
        """.replace("$N$", str(_PARTITIONS)).replace("$PER$", str(_SEGMENTS_EACH))
    )
    yield opened
    await opened.close()
    await admin.execute(f"drop database {name}")
    await admin.close()


async def _plan(connection: asyncpg.Connection, name: str, *arguments: object) -> str:
    rows = await connection.fetch(
        f"explain (analyze, buffers) {statements()[name].sql}", *arguments
    )
    return "\n".join(row[0] for row in rows)


def _rows_touched(plan: str) -> int:
    """Return the most rows that any node of the plan produced or threw away."""
    produced = [
        float(rows) * int(loops)
        for rows, loops in re.findall(r"actual time=\S+ rows=([\d.]+) loops=(\d+)", plan)
    ]
    removed = [int(count) for count in re.findall(r"Rows Removed by \w+: (\d+)", plan)]
    return int(max([*produced, *removed]))


async def test_reading_a_span_touches_only_its_segments(large: asyncpg.Connection) -> None:
    plan = await _plan(large, "read_spans", [7, 8], [5, 15], [25, 25])
    assert "segments_pkey" in plan and "Seq Scan" not in plan
    assert _rows_touched(plan) <= 10


async def test_what_was_written_lately_comes_from_the_time_index(
    large: asyncpg.Connection,
) -> None:
    newest = await large.fetchval("select max(created_at) - interval '5 ms' from segments")
    plan = await _plan(large, "written_since", [1], [newest])
    # Nothing is merged here.
    plan = plan.replace("Seq Scan on merged_segments", "")
    assert "segments_by_time" in plan and "Seq Scan" not in plan
    assert _rows_touched(plan) <= 100


async def test_a_sweep_page_is_a_page(large: asyncpg.Connection) -> None:
    plan = await _plan(large, "sweep_pages", [1], [1], [_PARTITIONS // 2], 1000)
    assert "Seq Scan" not in plan.replace("Seq Scan on groups", "")
    assert _rows_touched(plan) <= 2000


async def test_a_page_of_a_group_is_a_page(large: asyncpg.Connection) -> None:
    plan = await _plan(large, "group_partitions", [1], 100, 1000)
    assert "Seq Scan" not in plan.replace("Seq Scan on groups", "")
    assert _rows_touched(plan) <= 1100


async def test_an_id_is_looked_for_page_by_page(large: asyncpg.Connection) -> None:
    plan = await _plan(large, "suspects_before", 7, 2**62, b"12345678", 3)
    assert "segments_pkey" in plan and "Seq Scan" not in plan
    assert _rows_touched(plan) <= 3


async def test_the_search_for_a_time_is_a_search(large: asyncpg.Connection) -> None:
    before = await _segment_rows_read(large)
    offset = await large.fetchval(statements()["offset_at"].sql, 77, await _time_of(large, 77, 20))
    assert offset == 20
    assert await _segment_rows_read(large) - before <= 20


async def _time_of(connection: asyncpg.Connection, partition: int, offset: int) -> object:
    return await connection.fetchval(
        "select created_at from segments where partition_id = $1 and base_offset = $2",
        partition,
        offset,
    )


async def _segment_rows_read(connection: asyncpg.Connection) -> int:
    await connection.execute("select pg_stat_force_next_flush()")
    reads: int = await connection.fetchval(
        "select idx_tup_fetch + seq_tup_read from pg_stat_user_tables where relname = 'segments'"
    )
    return reads


async def _sequential_scans(connection: asyncpg.Connection) -> dict[str, int]:
    await connection.execute("select pg_stat_force_next_flush()")
    rows = await connection.fetch("select relname, seq_scan from pg_stat_user_tables")
    return {row["relname"]: row["seq_scan"] for row in rows}


async def test_append_claim_and_ack_never_scan_a_table(large: asyncpg.Connection) -> None:
    sql = {name: statements()[name].sql for name in ("append", "claim", "ack_spans")}
    before = await _sequential_scans(large)
    lease = uuid.uuid4()
    appended = await large.fetch(
        sql["append"], [1], [5, 9], [2, 3], [50, 50], [False, False], [1, 2], [0, 0], [2, 3],
        [0, 0], [b"a" * 16, b"b" * 24], [b"x", b"y"], [0, 0], [False, False], [None, None], 100,
    )  # fmt: skip
    assert [(row["outcome"], row["head"]) for row in appended] == [(0, 50), (0, 50)]
    arguments = ([5], [1], [1], [lease], [60_000], [False], [100], [3], [0], [0], [0], 100)
    (claimed,) = await large.fetch(sql["claim"], *arguments)
    assert (claimed["outcome"], claimed["committed"], claimed["batch_end"]) == (0, 0, 52)
    (acked,) = await large.fetch(sql["ack_spans"], [5], [1], [lease], [52], [False], 100)
    assert (acked["done"], acked["committed"]) == (True, 52)
    after = await _sequential_scans(large)
    for table in ("partitions", "segments", "cursors"):
        assert after[table] == before[table], table


async def test_a_lone_append_claim_and_ack_never_scan_a_table(large: asyncpg.Connection) -> None:
    # A connection that has given a lease, and so has a generation.
    first = ([3], [1], [1], [uuid.uuid4()], [60_000], [False], [1], [3], [0], [0], [0], 100)
    await large.fetch(statements()["claim"].sql, *first)
    before, lease = await _sequential_scans(large), uuid.uuid4()
    segment = (2, 50, None, 0, b"a" * 16, b"x", 0)
    (appended,) = await large.fetch(statements()["append_lone"].sql, 1, 7, *segment, 100)
    assert (appended["outcome"], appended["head"]) == (0, 50)
    plan = await _plan(large, "claim_lone", 7, 1, lease, 60_000, 100)
    assert _rows_touched(plan) <= 1
    plan += await _plan(large, "ack_lone", 7, 1, lease, 52)
    assert _rows_touched(plan) <= 1
    assert "Seq Scan" not in plan.replace("Seq Scan on groups", "")
    assert await large.fetchval("select committed from cursors where partition_id = 7") == 52
    after = await _sequential_scans(large)
    for table in ("partitions", "segments", "cursors"):
        assert after[table] == before[table], table


async def test_a_shared_claim_and_ack_never_scan_a_table(large: asyncpg.Connection) -> None:
    lease, other = uuid.uuid4(), uuid.uuid4()
    shared = statements()["claim_shared"].sql
    both = ([11, 11], [1, 1], [1, 2], [lease, other], *([value] * 2 for value in (60_000, False)))
    limits = ([20, 20], [3, 3], [0, 0], [0, 0], [0, 0], 100, False)
    async with large.transaction():
        await large.execute("update groups set shared = true")
        before = await _sequential_scans(large)
        first, second = await large.fetch(shared, *both, *limits)
        assert [(row["outcome"], row["committed"]) for row in (first, second)] == [(0, 0), (0, 20)]
        plan = await _plan(large, "lock_spans", [11], [1], [other])
        plan += await _plan(large, "spans_between", [11], [1], [0], [20])
        assert "Seq Scan" not in plan and _rows_touched(plan) <= 2
        acked = (statements()["ack_shared"].sql, [11], [1], [other], [20], [40], False, 100)
        assert [tuple(row) for row in await large.fetch(*acked)] == [(True,)]
        await large.execute("update groups set shared = false")
        after = await _sequential_scans(large)
    for table in ("partitions", "segments", "cursors", "shared_spans"):
        assert after[table] == before[table], table


async def test_a_page_of_statistics_reads_its_page_only(large: asyncpg.Connection) -> None:
    at = await large.fetchval("select now()")
    low, high = _PARTITIONS // 2, _PARTITIONS // 2 + 1000
    plan = await _plan(large, "stats_page", low, high, at, 100, 100)
    for table in ("partitions", "segments", "cursors"):
        assert f"Seq Scan on {table}" not in plan
    assert _rows_touched(plan) <= 1000


async def test_a_page_of_partitions_reads_its_page_only(large: asyncpg.Connection) -> None:
    plan = await _plan(large, "partition_page", 1, 100, 1000)
    for table in ("partitions", "segments", "cursors"):
        assert f"Seq Scan on {table}" not in plan
    assert _rows_touched(plan) <= 1100


async def test_the_newest_messages_come_from_the_time_index(large: asyncpg.Connection) -> None:
    start = await large.fetchval("select min(created_at) from segments")
    end = await large.fetchval("select max(created_at) from segments")
    # The function reads them, and what it reads is in the plan as pages.
    plan = await _plan(large, "browse_queue", 1, start, end, 2**62, 2**62, 100)
    assert "Function Scan on stretches_before" in plan and "Seq Scan" not in plan
    assert max(map(int, re.findall(r"Buffers: shared hit=(\d+)", plan))) <= 1000
    assert _rows_touched(plan) <= 1000


async def test_cursors_and_partitions_are_updated_in_place(connection: asyncpg.Connection) -> None:
    """HOT: no index covers a column that a push, a pop or an ack changes."""
    rows = await connection.fetch(
        """
        select c.relname, a.attname
          from pg_index i
          join pg_class c on c.oid = i.indrelid
          join pg_attribute a on a.attrelid = c.oid and a.attnum = any (i.indkey)
         where c.relnamespace = 'queen'::regnamespace and c.relname in ('cursors', 'partitions')
        """
    )
    indexed = {(row["relname"], row["attname"]) for row in rows}
    assert indexed == {
        ("cursors", "partition_id"),
        ("cursors", "group_id"),
        # Changes when the row has gone to another page, and only then.
        ("cursors", "hops"),
        ("partitions", "hops"),
        ("partitions", "id"),
        ("partitions", "queue_id"),
        ("partitions", "name"),
    }


async def test_no_index_of_partitions_is_better_at_ids_than_the_one_that_has_them_in_order(
    connection: asyncpg.Connection,
) -> None:
    """A smaller one would be searched by planners that can skip its first column, and sorted."""
    rows = await connection.fetch(
        """
        select i.indexrelid::regclass::text as name,
               array(select a.attname::text from unnest(i.indkey) with ordinality k (number, n)
                       join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
                      order by k.n) as columns
          from pg_index i where i.indrelid = 'queen.partitions'::regclass
        """
    )
    with_ids = {row["name"]: row["columns"] for row in rows if "id" in row["columns"]}
    assert len(with_ids) == 2
    assert all(columns[-2:] == ["id", "hops"] for columns in with_ids.values()), with_ids

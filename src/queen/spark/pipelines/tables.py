"""Results into a PostgreSQL table, each once.

A micro-batch is one transaction on the driver's connection. It notes (pipeline, batch) in a
table of its own; a batch that is noted already is one that Spark repeats after a crash, and is
left as it is. So rows without a key are not doubled either. Results are few compared to what
they were computed from; whoever moves millions of rows writes files.

Of several rows with the same keys the last one stays: the one of the latest window, and among
those of one window the one that came last. A null is a key like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from queen.errors import BadRequest, Unavailable
from queen.spark.pipelines.compiler import JSON_OPTIONS
from queen.spark.windows.event_time import named_column

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import Column, DataFrame

_LEDGER = "queen_pipeline_batches"
# In which order the rows of a batch came.
_ORDINAL = "_queen_ordinal"
_WINDOW = ("windowEnd", "windowStart")
_UNFIT = "_queen_unfit"
# As JSON writes it; a backslash before it is one of a text.
_NUL_IN_JSON = r"(?<!\\)(?:\\\\)*\\u0000"
_NUL_IN_TEXT = "a text with a NUL character (U+0000), which PostgreSQL does not store"
# The first and the last that PostgreSQL and Spark write alike.
_CALENDAR = {
    t.DateType: ("date '0001-01-01'", "date '9999-12-31'"),
    t.TimestampType: (
        "timestamp '0001-01-01 00:00:00 UTC'",
        "timestamp '9999-12-31 23:59:59.999999 UTC'",
    ),
    t.TimestampNTZType: (
        "timestamp_ntz '0001-01-01 00:00:00'",
        "timestamp_ntz '9999-12-31 23:59:59.999999'",
    ),
}
_BEYOND_CALENDAR = "a time that is in no year from 1 to 9999"
_TYPES: dict[type[t.DataType], str] = {
    t.BooleanType: "boolean",
    t.ByteType: "smallint",
    t.ShortType: "smallint",
    t.IntegerType: "integer",
    t.LongType: "bigint",
    t.FloatType: "real",
    t.DoubleType: "double precision",
    t.DecimalType: "numeric",
    t.StringType: "text",
    t.BinaryType: "bytea",
    t.DateType: "date",
    t.TimestampType: "timestamptz",
    t.TimestampNTZType: "timestamp",
}


class Table:
    """One table of the user's database. It is made if it is not there."""

    def __init__(self, url: str, name: str, keys: Sequence[str]) -> None:
        self._password = _password_of(url)
        self._url = url
        self._name = name
        self._keys = list(keys)

    def write(self, rows: DataFrame, transaction: str, number: int) -> None:
        """Put a batch into the table, unless it is there."""
        missing = [key for key in self._keys if key not in rows.columns]
        if missing:
            raise BadRequest(f"table key {missing[0]!r} is not a column of the results")
        with self._connect() as connection, connection.cursor() as cursor:
            self._create_ledger(cursor)
            if not self._note_batch(cursor, transaction, number):
                return
            self._create(cursor, rows.schema)
            self._copy(cursor, rows)

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg

        try:
            return psycopg.connect(self._url)
        except psycopg.Error as error:
            reason = str(error)
        # Outside of the handler, for a traceback would show the error as it was.
        if self._password and self._password in reason:
            reason = "it refuses the connection"
        raise Unavailable(f"the database of table {self._name!r}: {' '.join(reason.split())}")

    def _create_ledger(self, cursor: psycopg.Cursor[Any]) -> None:
        from psycopg import sql

        ledger = sql.Identifier(_LEDGER)
        if _may_create(cursor, ledger):
            columns = "(pipeline text primary key, batch bigint)"
            cursor.execute(sql.SQL("create table if not exists {} " + columns).format(ledger))

    def _note_batch(self, cursor: psycopg.Cursor[Any], transaction: str, number: int) -> bool:
        """Note the batch; false when it was noted before."""
        from psycopg import sql

        cursor.execute(
            sql.SQL(
                "insert into {ledger} as l (pipeline, batch) values (%s, %s) "
                "on conflict (pipeline) do update set batch = excluded.batch "
                "where l.batch < excluded.batch"
            ).format(ledger=sql.Identifier(_LEDGER)),
            (transaction, number),
        )
        return cursor.rowcount == 1

    def _create(self, cursor: psycopg.Cursor[Any], schema: t.StructType) -> None:
        from psycopg import sql

        if not _may_create(cursor, self._identifier()):
            return
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(field.name), sql.SQL(_type_of(field)))
            for field in schema.fields
        ]
        if self._keys:
            keys = sql.SQL(", ").join(map(sql.Identifier, self._keys))
            # A primary key would have no nulls.
            columns.append(sql.SQL("unique nulls not distinct ({})").format(keys))
        cursor.execute(
            sql.SQL("create table if not exists {} ({})").format(
                self._identifier(), sql.SQL(", ").join(columns)
            )
        )

    def _copy(self, cursor: psycopg.Cursor[Any], rows: DataFrame) -> None:
        """Bring rows to a temporary table, and from there to the real one."""
        from psycopg import sql

        names = sql.SQL(", ").join(map(sql.Identifier, rows.columns))
        cursor.execute(
            sql.SQL(
                "create temporary table queen_batch on commit drop as select {} from {} limit 0"
            ).format(names, self._identifier())
        )
        cursor.execute(
            sql.SQL("alter table queen_batch add {} bigint generated always as identity").format(
                sql.Identifier(_ORDINAL)
            )
        )
        with cursor.copy(sql.SQL("copy queen_batch ({}) from stdin").format(names)) as copy:
            for row in _rows_of(rows, self._name):
                copy.write_row(row)
        insert = sql.SQL("insert into {} ({}) ").format(self._identifier(), names)
        cursor.execute(insert + self._last_rows(rows.columns) + self._on_conflict(rows.columns))

    def _last_rows(self, columns: Sequence[str]) -> Any:
        """Of rows with the same keys take the last: one statement cannot replace a row twice."""
        from psycopg import sql

        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        if not self._keys:
            return sql.SQL("select {} from queen_batch").format(names)
        keys = sql.SQL(", ").join(map(sql.Identifier, self._keys))
        last = [*(name for name in _WINDOW if name in columns), _ORDINAL]
        order = [sql.SQL("{} desc nulls last").format(sql.Identifier(name)) for name in last]
        return sql.SQL(
            "select distinct on ({keys}) {names} from queen_batch order by {keys}, {order}"
        ).format(keys=keys, names=names, order=sql.SQL(", ").join(order))

    def _on_conflict(self, columns: Sequence[str]) -> Any:
        from psycopg import sql

        if not self._keys:
            return sql.SQL("")
        rest = [name for name in columns if name not in self._keys]
        keys = sql.SQL(", ").join(map(sql.Identifier, self._keys))
        if not rest:
            return sql.SQL(" on conflict ({}) do nothing").format(keys)
        changes = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in rest]
        return sql.SQL(" on conflict ({}) do update set {}").format(
            keys, sql.SQL(", ").join(changes)
        )

    def _identifier(self) -> Any:
        from psycopg import sql

        return sql.Identifier(*self._name.split("."))


def _may_create(cursor: psycopg.Cursor[Any], identifier: Any) -> bool:
    """Whether a table is not there, and nobody else of us makes it until this transaction ends.

    Two that create a table at once fail on each other, `if not exists` or not.
    """
    cursor.execute("select to_regclass(%s)", (identifier.as_string(cursor),))
    (relation,) = cursor.fetchone() or (None,)
    if relation is None:
        cursor.execute("select pg_advisory_xact_lock(hashtext(%s))", (_LEDGER,))
    return relation is None


def _password_of(url: str) -> str:
    """Return the password in a URL, or raise `BadRequest`, which never repeats the URL."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except ProgrammingError:
        parts = None
    if parts is None or _is_malformed(parts):
        raise BadRequest(
            "the URL of the table's database is wrong (it is not shown, as it may have a "
            "password in it): write postgresql://USER:PASSWORD@HOST:PORT/DATABASE, with "
            "characters like @ and / in the password as %40 and %2F"
        )
    return parts.get("password", "")


def _is_malformed(parts: Mapping[str, str]) -> bool:
    # Where an @ or a / is not written as %40 or %2F, a part of the password is taken for the
    # host, the port or the database, and an error would show it.
    ports = [port for port in parts.get("port", "").split(",") if port]
    is_elsewhere = "@" in parts.get("host", "") + parts.get("dbname", "")
    return is_elsewhere or not all(port.isdigit() for port in ports)


def _type_of(field: t.StructField) -> str:
    # What has no form of its own in a table is kept as JSON.
    return _TYPES.get(type(field.dataType), "jsonb")


def _rows_of(rows: DataFrame, table: str) -> Iterator[tuple[Any, ...]]:
    """Yield rows as PostgreSQL takes them, or raise `BadRequest` for the first that it does not."""
    columns = [_as_taken(field) for field in rows.schema.fields]
    for *row, unfit in rows.select(*columns, _unfit(rows.schema)).toLocalIterator():
        if unfit is not None:
            raise BadRequest(f"table {table!r}, {unfit}")
        yield tuple(row)


def _as_taken(field: t.StructField) -> Column:
    from pyspark.sql import functions as f

    column = named_column(field.name)
    match field.dataType:
        case t.TimestampType():
            # No zone has a part in this, Python's or the session's: they come as text, in UTC.
            taken = f.when(column.isNotNull(), f.to_csv(f.struct(column), JSON_OPTIONS))
        case t.DateType() | t.TimestampNTZType():
            # Python knows no year after 9999, and would not come to say so.
            taken = column.cast("string")
        case kind if type(kind) in _TYPES:
            taken = column
        case _:
            taken = f.to_json(column, JSON_OPTIONS)
    return taken.alias(field.name)


def _unfit(schema: t.StructType) -> Column:
    """Return which column of a row PostgreSQL does not take, and why; null when it takes all."""
    from pyspark.sql import functions as f

    reasons = [
        f.when(condition, f.lit(f"column {field.name!r}: {reason}"))
        for field in schema.fields
        for condition, reason in _unfit_values(field)
    ]
    return f.coalesce(f.lit(None).cast("string"), *reasons).alias(_UNFIT)


def _unfit_values(field: t.StructField) -> Iterator[tuple[Column, str]]:
    from pyspark.sql import functions as f

    column = named_column(field.name)
    match field.dataType:
        case t.StringType():
            yield column.contains("\0"), _NUL_IN_TEXT
        case t.TimestampType() | t.TimestampNTZType() | t.DateType() as kind:
            first, last = (f.expr(literal) for literal in _CALENDAR[type(kind)])
            yield ~column.between(first, last), _BEYOND_CALENDAR
        case kind if type(kind) not in _TYPES:
            text = f.to_json(column, JSON_OPTIONS)
            yield text.rlike(_NUL_IN_JSON), _NUL_IN_TEXT

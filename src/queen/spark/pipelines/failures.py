"""Messages on which an expression of a definition fails: found before anything is computed.

An expression may fail on one message of millions: a text that is no number, a time that no
calendar has. Spark then fails the batch, and with it the pipeline, for good. So what is computed of
single messages is tried first, by `TryEval`, which gives null instead of an error; inside a
structure, so that a null that was computed is told from one that stands for an error.

    where, event time, keys, dedup, what is aggregated, what is selected, what is joined by

An expression that only names a column is not tried. After a join what is computed is of a pair of
messages, and after aggregation of many: there an error still fails the pipeline.

A payload that is not what the schema says fails before all of them, unless the definition asks for
`_corrupt`: then it looks after such payloads itself.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import (
    AtomicType,
    DataType,
    DateType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from queen.errors import BadRequest
from queen.spark.arrow.columns import CORRUPT, unfit_reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from queen.wire.pipelines import Definition, Reads

# The reason, in a row of a message that has failed.
FAILED = "_failed"
_VALUE = "v"
_COLUMN = re.compile(r"(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*")
# As Spark's parser calls them: a column, a value, and the star of `count(*)`.
_CANNOT_FAIL = ("UnresolvedAttribute", "AttributeReference", "Literal", "UnresolvedStar")
_ASKS_CORRUPT = re.compile(rf"\b{CORRUPT}\b")
# Of functions that take many rows, or give many: what they are given is of one message.
_GENERATORS = "generator_funcs"
_AGGREGATES = ("agg_funcs",)
_NOT_BY_ROW = (*_AGGREGATES, _GENERATORS, "window_funcs")
_AGGREGATE_CLASSES = "org.apache.spark.sql.catalyst.expressions.aggregate."
_EVENT_TIME = "eventTime"
# The first and the last moment that are used as times.
_CALENDAR = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")


def has_trials(definition: Definition, side: int, trials: Trials, df: DataFrame) -> bool:
    """Whether some expression could fail on a message of a side."""
    reads = definition.reads[side]
    return bool(reads.where) or any(
        trials.by_row(text, df) for _, text in _computed(definition, side)
    )


def checks_schema(definition: Definition, side: int) -> bool:
    """Whether payloads that are not what the schema says are set aside."""
    if definition.reads[side].schema is None or definition.kind == "function":
        return False
    return not any(_ASKS_CORRUPT.search(text) for text in _expressions(definition))


def _expressions(definition: Definition) -> Iterator[str]:
    """Yield all expressions over messages, of all sides."""
    for reads in definition.reads:
        yield from reads.where
        yield reads.event_time or ""
    for join in definition.joins:
        yield from (text for pair in join.on for text in pair)
    yield from definition.dedup
    for named in (definition.keys, definition.aggregates, definition.distinct, definition.select):
        yield from named.values()
    yield definition.output.partition_by or ""


def failure_of(
    definition: Definition, side: int, trials: Trials, df: DataFrame, *, with_unfit: bool
) -> Column | None:
    """Return why a message of a side cannot be computed with, null when it can; None when nothing
    could fail on it. `with_unfit` counts payloads that are not what the schema says."""
    reads, failure = definition.reads[side], None
    if with_unfit and reads.schema is not None and checks_schema(definition, side):
        reason = unfit_reason(cast("StructType", StructType.fromDDL(reads.schema)))
        failure = f.when(f.col(CORRUPT).isNotNull(), f.lit(reason))
    for condition in reads.where:
        trial = trials.column(condition)
        failure = _case(failure, trial.isNull(), f.lit(_reason("where", condition)))
        # What is left out is asked nothing else.
        is_in = f.coalesce(trial[_VALUE].cast("boolean"), f.lit(False))
        failure = _case(failure, ~is_in, f.lit(None).cast("string"))
    for name, text in _computed(definition, side):
        for trial in trials.by_row(text, df):
            failure = _case(failure, trial.isNull(), f.lit(_reason(name, text)))
            if name == _EVENT_TIME:
                is_far = trial[_VALUE].isNotNull() & within_calendar(trial[_VALUE]).isNull()
                failure = _case(failure, is_far, f.lit(f"{name} is in no year from 1 to 9999"))
    return None if failure is None else failure.otherwise(f.lit(None).cast("string"))


def _reason(name: str, text: str) -> str:
    return f"{name} cannot be computed: {text}"


def _case(failure: Column | None, condition: Column, value: Column) -> Column:
    return f.when(condition, value) if failure is None else failure.when(condition, value)


def _computed(definition: Definition, side: int) -> Iterator[tuple[str, str]]:
    """Yield what is computed of single messages, with the name that it has in a definition."""
    reads = definition.reads[side]
    if reads.event_time:
        yield _EVENT_TIME, reads.event_time
    if definition.joins:
        yield from (("on", text) for text in _joined_by(definition, side))
        return
    yield from (("dedup", text) for text in definition.dedup)
    yield from ((f"key {name}", text) for name, text in definition.keys.items())
    yield from definition.aggregates.items()
    yield from definition.distinct.items()
    if definition.window is None:
        yield from definition.select.items()
        if definition.output.partition_by:
            yield "partitionBy", definition.output.partition_by


def _joined_by(definition: Definition, side: int) -> list[str]:
    """Return what a side is joined by; of the sides before a later join there are only pairs."""
    if side == 0:
        return [left for left, _ in definition.joins[0].on]
    return [right for _, right in definition.joins[side - 1].on]


def within_calendar(time: Column) -> Column:
    """Return a time, null when it is so far off that nothing could be added to it."""
    first, last = (f.expr(f"timestamp '{moment} UTC'") for moment in _CALENDAR)
    return f.when(time.between(first, last), time)


def with_explicit_casts(definition: Definition, frames: Mapping[str, DataFrame]) -> Definition:
    """Return a definition with the casts in it that Spark would make of texts by itself.

    An expression that only names a column cannot fail, unless Spark makes something else of it: a
    time of a text, or a number to compare a text with.
    """
    sides = {reads.name: frames[reads.name] for reads in definition.reads}
    reads = [_with_time(side, sides[side.name]) for side in definition.reads]
    joins = []
    for at, join in enumerate(definition.joins):
        left = sides[reads[0].name] if at == 0 else _as_pairs(sides)
        right = sides[reads[at + 1].name]
        on = [_of_one_type(pair, left, right) for pair in join.on]
        joins.append(msgspec.structs.replace(join, on=on))
    return msgspec.structs.replace(definition, reads=reads, joins=joins)


def _type_of(text: str, df: DataFrame) -> DataType:
    return df.select(f.expr(text)).schema[0].dataType


def _with_time(side: Reads, df: DataFrame) -> Reads:
    if side.event_time is None:
        return side
    kind = _type_of(side.event_time, df)
    if isinstance(kind, StringType):
        return msgspec.structs.replace(side, event_time=f"cast({side.event_time} as timestamp)")
    if not isinstance(kind, TimestampType | TimestampNTZType | DateType):
        raise BadRequest(
            f"event_time: {side.event_time} is a {kind.simpleString()} and not a time; make one of "
            "it, as in timestamp_millis(data.ms)"
        )
    return side


def _as_pairs(sides: Mapping[str, DataFrame]) -> DataFrame:
    """Return what joined messages look like, without any."""
    fields = [StructField(name, df.schema) for name, df in sides.items()]
    spark = next(iter(sides.values())).sparkSession
    return spark.createDataFrame([], StructType(fields))


def _of_one_type(pair: tuple[str, str], left: DataFrame, right: DataFrame) -> tuple[str, str]:
    ours, theirs = _type_of(pair[0], left), _type_of(pair[1], right)
    if isinstance(ours, StringType) and isinstance(theirs, AtomicType) and ours != theirs:
        return f"cast({pair[0]} as {theirs.simpleString()})", pair[1]
    if isinstance(theirs, StringType) and isinstance(ours, AtomicType) and ours != theirs:
        return pair[0], f"cast({pair[1]} as {ours.simpleString()})"
    return pair


class Trials:
    """Expressions as Spark's parser sees them, tried instead of computed."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark._jsparkSession.sessionState()
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._catalyst: Any = jvm.org.apache.spark.sql.catalyst
        self._parser, self._catalog = session.sqlParser(), session.catalog()
        self._structure = self._parser.parseExpression(f"named_struct('{_VALUE}', 0)")

    def column(self, text: str) -> Column:
        """Return a structure with the value of an expression; null when it fails."""
        return self._tried(self._parser.parseExpression(text))

    def value(self, text: str) -> Column:
        """Return the value of an expression of messages that do not fail.

        It is tried here too: a filter on it may be evaluated before the one that takes out what
        fails, and Spark looks first whether something is null.
        """
        return f.expr(text) if _COLUMN.fullmatch(text) else self.column(text)[_VALUE]

    def rows_of(self, text: str) -> Column:
        """Return an expression of messages that do not fail; `explode` and its like may be in it.

        Spark looks into what they are given before it takes out what fails, so that is tried too.
        """
        return self._as_column(self._guard(self._parser.parseExpression(text)))

    def by_row(self, text: str, df: DataFrame) -> list[Column]:
        """Return what of an expression is computed message by message and may fail, tried."""
        parsed = self._parser.parseExpression(text)
        if not self._has_many(parsed):
            parts = [parsed]
        elif self._has_many(parsed, _AGGREGATES):
            parts = list(self._given_to_aggregates(text, df))
        else:
            parts = list(self._given_to_many(parsed))
        return [self._tried(part) for part in parts if not _cannot_fail(part)]

    def _given_to_aggregates(self, text: str, df: DataFrame) -> Iterator[Any]:
        """Yield what aggregates are given, with the casts that Spark has made of it."""
        try:
            analyzed: Any = df.groupBy().agg(f.expr(text))._jdf.queryExecution().analyzed()
        except AnalysisException:
            # It is told when the query is made.
            return
        expressions = analyzed.aggregateExpressions()
        for at in range(expressions.size()):
            for aggregate in _nodes_of(expressions.apply(at), "AggregateExpression"):
                given = list(_given_to(aggregate.aggregateFunction()))
                if aggregate.filter().isDefined():
                    # What the filter leaves out is not asked for anything else.
                    condition = aggregate.filter().get()
                    yield condition
                    given = [self._only_if(condition, part) for part in given]
                yield from given

    def _only_if(self, condition: Any, part: Any) -> Any:
        guarded = self._parser.parseExpression("if(true, 0, null)")
        nothing = guarded.children().apply(2)
        return guarded.withNewChildren(self._sequence([condition, part, nothing]))

    def _tried(self, expression: Any) -> Column:
        # Put together of what is parsed: as text, Spark leaves out casts to arrays.
        children = self._structure.children()
        structure = self._structure.withNewChildren(self._sequence([children.apply(0), expression]))
        return self._as_column(self._catalyst.expressions.TryEval(structure))

    def _as_column(self, expression: Any) -> Column:
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _sequence(self, items: list[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(items)

    def _guard(self, expression: Any) -> Any:
        parts = _children_of(expression)
        if not parts:
            return expression
        if self._group_of(expression) == _GENERATORS:
            guarded = [self._catalyst.expressions.TryEval(part) for part in parts]
        else:
            guarded = [self._guard(part) for part in parts]
        return expression.withNewChildren(self._sequence(guarded))

    def _has_many(self, expression: Any, groups: Collection[str] | None = None) -> bool:
        """Whether a function of many rows is in an expression."""
        if self._group_of(expression) in (groups or _NOT_BY_ROW):
            return True
        return any(self._has_many(part, groups) for part in _children_of(expression))

    def _given_to_many(self, expression: Any) -> Iterator[Any]:
        """Yield what functions of many rows are given: arguments, and a filter."""
        if self._group_of(expression) in _NOT_BY_ROW:
            yield from _children_of(expression)
            return
        for part in _children_of(expression):
            yield from self._given_to_many(part)

    def _group_of(self, expression: Any) -> str | None:
        """Return the group that Spark's documentation has a function in; None of other things."""
        if _kind_of(expression) != "UnresolvedFunction":
            return None
        names = expression.nameParts()
        identifier = self._catalyst.FunctionIdentifier(names.apply(names.size() - 1))
        if not self._catalog.functionExists(identifier):
            return None
        return str(self._catalog.lookupFunctionInfo(identifier).getGroup())


def _children_of(expression: Any) -> list[Any]:
    children = expression.children()
    return [children.apply(at) for at in range(children.size())]


def _kind_of(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _cannot_fail(expression: Any) -> bool:
    """Whether an expression is a column, a field of one, or a value."""
    kind = _kind_of(expression)
    if kind == "GetStructField":
        return _cannot_fail(expression.children().apply(0))
    return kind in _CANNOT_FAIL


def _nodes_of(expression: Any, kind: str) -> Iterator[Any]:
    if _kind_of(expression) == kind:
        yield expression
        return
    for part in _children_of(expression):
        yield from _nodes_of(part, kind)


def _given_to(function: Any) -> Iterator[Any]:
    """Yield what an aggregate is given; some are made of others."""
    for part in _children_of(function):
        if str(part.getClass().getName()).startswith(_AGGREGATE_CLASSES):
            yield from _given_to(part)
        else:
            yield part

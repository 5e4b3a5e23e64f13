"""Expressions that are tried instead of computed: null is what is given in place of an error.

Spark's own parser takes an expression apart, so that what is computed of single messages is told
from what is computed of many.

Spark computes what several expressions have in common once, before all of them, and so outside of
any trial: of `cast(a as int) > 2` and `cast(a as int) % 3` that is the cast, which fails there. It
does not look into the branches of a condition, since they may be left out. So what is tried is
such a branch, of a condition that always holds, though Spark does not know. The other branch is
one that Spark can make nothing of either: a null would be moved out of the trial, and the condition
after it.

        try(if(always, computed, never))
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The field of a structure that holds the value of what was tried.
VALUE = "v"
_COLUMN = re.compile(r"(?:`[^`]+`|\w+)(?:\.(?:`[^`]+`|\w+))*")
# As Spark's parser calls them: a column, a value, and the star of `count(*)`.
_COLUMNS = ("UnresolvedAttribute", "AttributeReference")
_CANNOT_FAIL = (*_COLUMNS, "Literal", "UnresolvedStar")
# Of functions that take many rows, or give many: what they are given is of one message.
_GENERATORS = "generator_funcs"
_AGGREGATES = ("agg_funcs",)
_NOT_BY_ROW = (*_AGGREGATES, _GENERATORS, "window_funcs")
_NEVER = "raise_error('this is never computed')"
_AGGREGATE_CLASSES = "org.apache.spark.sql.catalyst.expressions.aggregate."


class Trials:
    """Expressions as Spark's parser sees them, tried instead of computed."""

    def __init__(self, spark: SparkSession) -> None:
        session: Any = spark._jsparkSession.sessionState()
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._catalyst: Any = jvm.org.apache.spark.sql.catalyst
        self._parser, self._catalog = session.sqlParser(), session.catalog()
        self._structure = self._parser.parseExpression(f"named_struct('{VALUE}', 0)")

    def column(self, text: str) -> Column:
        """Return a structure with the value of an expression; null when it fails."""
        return self._tried(self._parser.parseExpression(text))

    def value(self, text: str) -> Column:
        """Return the value of an expression of messages that do not fail.

        It is tried here too: a filter on it may be evaluated before the one that takes out what
        fails, and Spark looks first whether something is null.
        """
        return f.expr(text) if _COLUMN.fullmatch(text) else self.column(text)[VALUE]

    def rows_of(self, text: str) -> Column:
        """Return an expression of messages that do not fail; `explode` and its like may be in it.

        Spark looks into what they are given before it takes out what fails, so that is tried too.
        """
        parsed = self._parser.parseExpression(text)
        return self._as_column(self._guard(parsed)) if self._has_many(parsed) else self.value(text)

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

    def _only_if(self, condition: Any, part: Any, otherwise: str = "null") -> Any:
        guarded = self._parser.parseExpression(f"if(true, 0, {otherwise})")
        other = guarded.children().apply(2)
        return guarded.withNewChildren(self._sequence([condition, part, other]))

    def _tried(self, expression: Any) -> Column:
        # Put together of what is parsed: as text, Spark leaves out casts to arrays.
        children = self._structure.children()
        structure = self._structure.withNewChildren(self._sequence([children.apply(0), expression]))
        return self._as_column(self._try(structure))

    def _try(self, expression: Any) -> Any:
        column = next(_columns_of(expression), None)
        if column is not None:
            # At least none of its columns is not null.
            always = self._catalyst.expressions.AtLeastNNonNulls(0, self._sequence([column]))
            expression = self._only_if(always, expression, _NEVER)
        return self._catalyst.expressions.TryEval(expression)

    def _as_column(self, expression: Any) -> Column:
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _sequence(self, items: list[Any]) -> Any:
        return self._jvm.PythonUtils.toSeq(items)

    def _guard(self, expression: Any) -> Any:
        parts = _children_of(expression)
        if not parts:
            return expression
        if self._group_of(expression) == _GENERATORS:
            guarded = [self._try(part) for part in parts]
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


def _columns_of(expression: Any) -> Iterator[Any]:
    return _nodes_of(expression, *_COLUMNS)


def _nodes_of(expression: Any, *kinds: str) -> Iterator[Any]:
    if _kind_of(expression) in kinds:
        yield expression
        return
    for part in _children_of(expression):
        yield from _nodes_of(part, *kinds)


def _given_to(function: Any) -> Iterator[Any]:
    """Yield what an aggregate is given; some are made of others."""
    for part in _children_of(function):
        if str(part.getClass().getName()).startswith(_AGGREGATE_CLASSES):
            yield from _given_to(part)
        else:
            yield part

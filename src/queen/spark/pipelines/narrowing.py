"""Pipelines that read only the columns they need.

Spark hands no projection to a source in Python: every column of the schema is made, and `data`
is parsed, whether or not somebody looks. So a definition is compiled over all columns first,
Spark's optimizer says which of them it uses, and it is compiled again over these.

`data` stays as the schema says, all its fields, as long as anything of it is used: which payloads
do not fit depends on them. Where nothing of it is used, `_corrupt` included, it makes no
difference which do.

Joins and dedup keep whole messages in their state. Of these every column stays, so that an old
checkpoint is one of the same pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException

from queen.spark.arrow.columns import COLUMNS, CORRUPT, DATA, RAW, SEALED
from queen.spark.pipelines.compiler import MESSAGE, needs_raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from queen.spark.pipelines.compiler import CompiledPipeline
    from queen.wire.pipelines import Definition

# Reads the sides of a definition with these columns, or with all.
Read = Callable[[Collection[str] | None], Mapping[str, "DataFrame"]]
_WORD = re.compile(r"\w+")
# A row without columns cannot be made; this one costs the least.
_CHEAPEST = "offset"


def compile_narrow(
    definition: Definition,
    read: Read,
    make: Callable[[Mapping[str, DataFrame]], CompiledPipeline],
    result: Callable[[CompiledPipeline], DataFrame],
) -> CompiledPipeline:
    """Compile a definition over no more columns than `result` needs, which stays as it was."""
    whole = make(read(None))
    if definition.joins or definition.dedup:
        return whole
    rows = result(whole)
    columns = columns_used(rows) | columns_named(definition)
    if whole.aside is not None:
        columns |= _columns_of_aside(definition)
    try:
        narrow = make(read(_with_companions(columns)))
        is_same = result(narrow).schema == rows.schema
    except AnalysisException:
        # It needs a column by a name that was not seen, though nothing of what is in it.
        return whole
    return narrow if is_same else whole


def columns_used(rows: DataFrame) -> set[str]:
    """Return the columns of sources that the rows are computed from."""
    plan = _optimized(rows)
    used = {attribute.exprId().id() for attribute in _items(plan.output())}
    leaves = []
    for node in _nodes(plan):
        used |= {attribute.exprId().id() for attribute in _items(node.references().toSeq())}
        if not node.children().size():
            leaves.append(node)
    return {
        attribute.name()
        for leaf in leaves
        for attribute in _items(leaf.output())
        if attribute.exprId().id() in used
    }


def columns_named(definition: Definition) -> set[str]:
    """Return the words in expressions that may be columns. What the optimizer makes no use of is
    resolved all the same: an aggregate that nobody selects, a condition that always holds."""
    texts = [
        *(text for side in definition.reads for text in (*side.where, side.event_time or "")),
        *(*definition.keys.values(), *definition.aggregates.values()),
        *(*definition.distinct.values(), *definition.select.values()),
        *definition.having,
        definition.output.partition_by or "",
    ]
    words = {word.lower() for text in texts for word in _WORD.findall(text)}
    return {column for column in COLUMNS if column.lower() in words}


def _columns_of_aside(definition: Definition) -> set[str]:
    """Return what is told of a message that is set aside, and its payload."""
    has_raw = needs_raw(definition) and definition.reads[0].schema is not None
    return {"id", *MESSAGE, RAW if has_raw else DATA}


def _with_companions(columns: set[str]) -> set[str]:
    """Add what has to be there for others, or because there is nothing else."""
    if columns & {DATA, CORRUPT}:
        # Without the one, a payload that does not fit the other would fail the read.
        columns = columns | {DATA, CORRUPT}
    return columns if columns - {SEALED} else {*columns, _CHEAPEST}


def _optimized(rows: DataFrame) -> Any:
    session: Any = rows.sparkSession
    # Not by way of the query: Spark has none of a stream before it is started.
    optimizer = session._jsparkSession.sessionState().optimizer()
    return optimizer.execute(rows._jdf.queryExecution().analyzed())


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _items(plan.children()):
        yield from _nodes(child)


def _items(sequence: Any) -> Iterator[Any]:
    return (sequence.apply(at) for at in range(sequence.size()))

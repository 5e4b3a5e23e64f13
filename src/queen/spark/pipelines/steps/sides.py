"""One side of what a pipeline reads: what can be computed with, and what cannot."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queen.spark.arrow.columns import CORRUPT
from queen.spark.pipelines.expressions.failures import (
    FAILED,
    checks_schema,
    failure_of,
    within_calendar,
)
from queen.spark.windows.event_time import CREATED_AT, SEALED, named_column, observe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from queen.spark.pipelines.expressions.trials import Trials
    from queen.wire.pipelines import Definition, Reads


class Side:
    """One of the reads: what can be computed with, and all of it with what cannot.

    `has_unfit` says that payloads which are not what the schema says are among what cannot;
    otherwise the source sets them aside, and they are only left out.
    """

    def __init__(
        self,
        definition: Definition,
        number: int,
        df: DataFrame,
        trials: Trials,
        *,
        is_fatal: bool,
        has_unfit: bool,
        in_time: bool,
    ) -> None:
        reads = definition.reads[number]
        self.name = reads.name
        everything = df
        # Here, and not in the branch for what is set aside, which reads all of it again.
        is_marker = f.col(SEALED).isNotNull() if SEALED in df.columns else f.lit(False)
        df = observe(df, self.name, rows=f.count_if(~is_marker))
        if checks_schema(definition, number) and not has_unfit:
            df = observe(df, self.name, failed=f.count_if(f.col(CORRUPT).isNotNull()))
            df = _only_messages(df, f.col(CORRUPT).isNull())
        # What was written in time has it there already.
        self.time = trials.value((None if in_time else reads.event_time) or CREATED_AT)
        if reads.event_time is not None:
            self.time = within_calendar(self.time)
        failure = failure_of(definition, number, trials, df, with_unfit=has_unfit)
        self.can_fail = failure is not None
        conditions = [trials.value(condition) for condition in reads.where]
        # Of what fails no time is known, so that it is with the late messages.
        self.all = everything.withColumn(
            FAILED, f.lit(None).cast("string") if failure is None else failure
        )
        for condition in conditions:
            self.all = _only_messages(self.all, f.col(FAILED).isNotNull() | condition)
        self.time_of_all = f.when(f.col(FAILED).isNull(), self.time)
        if failure is not None:
            is_good = failure.isNull()
            if is_fatal:
                is_good = f.when(is_good, True).otherwise(_raise(failure))
            df = _only_messages(df, is_good)
        for condition in conditions:
            df = _only_messages(df, condition)
        self.df = df


def _only_messages(df: DataFrame, condition: Column) -> DataFrame:
    """Keep the messages of which a condition holds. A filter alone would remove markers too."""
    if SEALED not in df.columns:
        return df.where(condition)
    # In this order: of a marker nothing else is asked.
    return df.where(f.when(named_column(SEALED).isNotNull(), True).otherwise(condition))


def _raise(failure: Column) -> Column:
    """Return what fails the query with the name of the message that it fails on."""
    place = [f.lit("message "), f.col("id"), f.lit(" at offset "), f.col("offset")]
    place += [f.lit(" of partition "), f.col("partition"), f.lit(" of queue "), f.col("queue")]
    return f.raise_error(f.concat(*place, f.lit(": "), failure)).cast("boolean")


def written_in_time(
    df: DataFrame, reads: Reads, trials: Trials, until: datetime | None
) -> DataFrame:
    """Let messages have been written when they happened, and leave out what happens later."""
    if reads.event_time is not None:
        time = trials.value(f"cast({reads.event_time} as timestamp)")
        df = df.withColumn(CREATED_AT, within_calendar(time))
    if until is None:
        return df
    # One without a time belongs to no window, but it may be one to fail on.
    return df.where(f.col(CREATED_AT).isNull() | (f.col(CREATED_AT) < f.lit(until)))

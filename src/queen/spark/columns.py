"""The columns that a queue has as a DataFrame."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

# In this order when the user gives no schema; a user's schema names any of them in any order.
_ALWAYS = (
    StructField("queue", StringType()),
    StructField("partition", StringType()),
    StructField("offset", LongType()),
    StructField("id", StringType()),
    StructField("transactionId", StringType()),
    StructField("traceId", StringType()),
    StructField("createdAt", TimestampType()),
    StructField("data", StringType()),
)
# Only with the option `markers`: the sealed time, in the one row of a micro-batch without a
# message.
SEALED = StructField("sealed", TimestampType())


def default_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns of a read without a schema."""
    has_markers = options.get("markers", "false").lower() == "true"
    return StructType([*_ALWAYS, SEALED] if has_markers else list(_ALWAYS))

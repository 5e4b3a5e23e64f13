"""Which partition a result goes to, whatever its key is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from queen.core.names import DEFAULT_PARTITION, MAX_NAME_BYTES, REFUSED_CHARACTERS

if TYPE_CHECKING:
    from pyspark.sql import Column

# As Java writes it.
_REFUSED = (
    "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in REFUSED_CHARACTERS) + "]"
)


def partition_name(text: Column) -> Column:
    """Return a name that a partition may have: a text that may not be one is hashed.

    A key comes from a payload. One that is missing or odd must not stop a pipeline.
    """
    is_odd = (f.octet_length(text) > MAX_NAME_BYTES) | text.rlike(_REFUSED)
    named = f.when(is_odd, f.sha2(text, 256)).otherwise(text)
    return f.coalesce(f.nullif(named, f.lit("")), f.lit(DEFAULT_PARTITION))

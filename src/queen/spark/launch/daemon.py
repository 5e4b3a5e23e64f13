"""What Spark forks its Python processes from, on one machine.

Each of them would import what our source and sink need, and a query has several, each of which
keeps somebody waiting. Imported before the fork, it is there for all.
"""

from __future__ import annotations

from importlib import import_module

from pyspark import daemon

_NEEDED = (
    "numpy",
    "pyarrow",
    "pyspark.sql.worker.plan_data_source_read",
    "queen.spark.source.batch",
    "queen.spark.source.datasource",
    "queen.spark.sink.sink",
    "queen.spark.source.streaming",
)

if __name__ == "__main__":
    for module in _NEEDED:
        import_module(module)
    daemon.manager()

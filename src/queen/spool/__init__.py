"""The spool: records on the disk of this machine until somebody else has them.

A broker puts pushes here that shall not wait for the database, or that cannot reach it; a
client those that cannot reach a broker. Both drain it in order. This package is the layer of
files alone: it knows neither queues nor brokers.
"""

from queen.spool.asynchronous import AsyncSpool
from queen.spool.disk.format import KIND_FRAME, KIND_JSON, Record
from queen.spool.folder import SpoolRoot
from queen.spool.options import SpoolOptions
from queen.spool.spool import Spool

__all__ = [
    "KIND_FRAME",
    "KIND_JSON",
    "AsyncSpool",
    "Record",
    "Spool",
    "SpoolOptions",
    "SpoolRoot",
]

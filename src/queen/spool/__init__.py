"""The spool: records on the disk of this machine until somebody else has them.

A broker puts pushes here that shall not wait for the database, or that cannot reach it; a
client those that cannot reach a broker. Both drain it in order. This package is the layer of
files alone: it knows neither queues nor brokers.

    root = SpoolRoot(path, owner="the name of the database")
    spool = AsyncSpool(Spool(root.claim()))         # and one Spool for each of root.adopt()
    await spool.append(bodies, KIND_JSON)           # QoS 0: with the operating system
    await spool.append(bodies, KIND_JSON, durable=True)  # on the disk
    records = await spool.read(after=drained)       # in order; `drained` is kept elsewhere
    await spool.release(records[-1].seq)
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

"""How the tests merge what is stored, at once and whatever its age."""

from __future__ import annotations

from queen.core.cipher import KeyRing
from queen.service.log.segment_encryption import SegmentEncryption
from queen.service.merged.merging import Merger
from queen.service.upkeep.jobs import Jobs
from queen.service.upkeep.retention import JOB as RETENTION_JOB
from queen.storage.database import Database, Transaction


async def merge_all(dsn: str) -> int:
    """Merge everything that can be merged in a database; return how many rows were replaced."""
    database = await Database.connect(dsn, size=1)
    try:
        return await merge_in(database)
    finally:
        await database.close()


async def merge_in(database: Database, merger: Merger | None = None) -> int:
    """The same with connections that are there, and maybe not at any age."""
    merger = merger or Merger(SegmentEncryption(KeyRing()), 0, 0)
    jobs = Jobs(database)
    jobs.add("merge", 1, merger.merge_some)

    async def merge_beside_retention(transaction: Transaction) -> bool:
        await transaction.fetchval("wait_for_job", RETENTION_JOB)
        return await merger.merge_some(transaction)

    refused = -1
    while refused < merger.rounds_refused:
        refused = merger.rounds_refused
        while await jobs.run_once("merge", merge_beside_retention, waits=True):
            pass
    return merger.rows_merged

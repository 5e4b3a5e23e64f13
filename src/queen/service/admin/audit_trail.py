"""The audit trail in the database: who has changed what."""

from __future__ import annotations

from queen.service.rows import Record
from queen.storage.database import Database


class AuditTrail:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def write(
        self,
        actor: str,
        credential: str,
        address: str,
        act: str,
        target: str,
        outcome: str,
        detail: str,
    ) -> None:
        """Keep an entry; `detail` is JSON."""
        await self._database.execute(
            "write_audit", actor, credential, address, act, target, outcome, detail
        )

    async def page(self, before: int, limit: int, actor: str, act: str) -> list[Record]:
        """Return entries before one, the newest first; empty texts match all."""
        return await self._database.fetch("audit_page", before, limit, actor, act)

"""Pushes: each batch to its server, again as long as that may help, or into the spool."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from queen.client.pushing.batches import PushBatch
from queen.client.pushing.requests import PushRequest
from queen.client.pushing.sharing import SharedPushes
from queen.client.queues.messages import BUFFERED, Pushed
from queen.client.queues.partial_requests import ItemPush
from queen.client.transport.cluster import JSON, Cluster, EitherBody
from queen.client.transport.http import Answer
from queen.errors import QueenError

if TYPE_CHECKING:
    # Loaded by those who have a spool.
    from queen.client.spooling.spool import ClientSpool

_PATH = "/api/v1/push"


class Pushes:
    """All pushes of a client that are not buffered."""

    def __init__(self, cluster: Cluster, spool: ClientSpool | None) -> None:
        self._cluster = cluster
        self._spool = spool
        self._shared = SharedPushes(cluster, self._push_alone)

    async def push(
        self, batch: PushBatch, options: Mapping[str, Any] | None = None
    ) -> list[Pushed]:
        """Store a batch; `options` says how the server may buffer it."""
        # What goes into a spool keeps its order by itself.
        if not options and self._spool is None and batch.may_share:
            return await self._shared.push(batch)
        pushed: list[Pushed] = []
        for part in batch.parts():
            pushing = ItemPush(len(part), pushed)
            deadline = time.monotonic() + self._cluster.retry_s
            pushed += await self._push_part(part, pushing, options, deadline)
        return pushed

    async def _push_alone(
        self, batch: PushBatch, stored: dict[int, Pushed], deadline: float
    ) -> list[Pushed]:
        """Store what could not be stored together with others."""
        return await self._push_part(batch, ItemPush(len(batch), (), stored), None, deadline)

    async def _push_part(
        self,
        batch: PushBatch,
        pushing: ItemPush,
        options: Mapping[str, Any] | None,
        deadline: float,
    ) -> list[Pushed]:
        """Store messages; what a server did not take for now is sent again, and nothing else."""
        key = f"{batch.queue}:{batch.partition}"
        while True:
            places = pushing.next_places()
            if self._spool is not None and await self._spool.keys_behind(batch.keys()):
                return await self._keep(self._spool, batch, pushing)
            request = PushRequest([batch], options, None if pushing.is_whole else places)
            try:
                answer = await self.send(request, key, deadline - time.monotonic())
                return pushing.finish(request.results(answer))
            except QueenError as error:
                request.explain(error)
                may_go_on = pushing.note_stored(error)
                if self._spool is not None and pushing.may_pass(error):
                    is_for_spool = self._spool.note_failure(error)
                    if is_for_spool:
                        return await self._keep(self._spool, batch, pushing)
                if not may_go_on or time.monotonic() > deadline:
                    raise pushing.explain(error) from None

    async def send(
        self, body: bytes | EitherBody, key: str, retry_s: float, content_type: bytes = JSON
    ) -> Answer:
        """Send a push. With a spool it is not sent again to a broker that is away."""
        if self._spool is None:
            return await self._cluster.call(
                "POST", _PATH, body, key=key, content_type=content_type, retry_s=retry_s
            )
        return await self._cluster.call(
            "POST",
            _PATH,
            body,
            key=key,
            content_type=content_type,
            retry_s=retry_s,
            answer_s=self._spool.try_s,
            give_up_after=self._spool.is_for_spool,
        )

    async def _keep(self, spool: ClientSpool, batch: PushBatch, pushing: ItemPush) -> list[Pushed]:
        """Put what is not stored into the spool."""
        places = pushing.next_places()
        try:
            await spool.keep_items([batch.item(at) for at in places])
        except QueenError as error:
            raise pushing.explain(error) from None
        return pushing.finish(
            [Pushed(status=BUFFERED, transaction_id=batch.ids[at]) for at in places]
        )

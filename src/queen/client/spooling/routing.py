"""Frames that are sent to a broker, or go into the spool if it is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from queen.client.queues.messages import BUFFERED
from queen.client.queues.partial_requests import Outcome, refusal
from queen.errors import QueenError

if TYPE_CHECKING:
    from queen.client.queen import NamedFrame
    from queen.client.spooling.spool import ClientSpool

_KEPT = Outcome({"status": BUFFERED})


async def try_or_spool(
    spool: ClientSpool,
    frames: list[NamedFrame],
    send: Callable[[list[NamedFrame]], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    """Return what became of each frame. What nobody could take is in the spool, and counts as
    stored: nobody has to send it again."""
    behind = await spool.keys_behind((queue, partition) for queue, partition, _ in frames)
    outcomes = [_KEPT if (frame[0], frame[1]) in behind else None for frame in frames]
    tried = [at for at, outcome in enumerate(outcomes) if outcome is None]
    if tried:
        for at, outcome in zip(tried, await _try(spool, frames, tried, send), strict=True):
            outcomes[at] = outcome
    kept = [frame for frame, outcome in zip(frames, outcomes, strict=True) if outcome is _KEPT]
    try:
        await spool.keep_frames(kept)
    except QueenError as error:
        if len(kept) == len(frames):
            raise
        # The others are stored, or refused for their own reasons.
        unkept = Outcome(refusal(error), error)
        outcomes = [unkept if outcome is _KEPT else outcome for outcome in outcomes]
    return [outcome for outcome in outcomes if outcome is not None]


async def _try(
    spool: ClientSpool,
    frames: list[NamedFrame],
    tried: list[int],
    send: Callable[[list[NamedFrame]], Awaitable[list[Outcome]]],
) -> list[Outcome]:
    try:
        outcomes = await send([frames[at] for at in tried])
    except QueenError as error:
        if not spool.note_failure(error):
            raise
        return [_KEPT] * len(tried)
    return [
        _KEPT if outcome.error is not None and spool.note_failure(outcome.error) else outcome
        for outcome in outcomes
    ]

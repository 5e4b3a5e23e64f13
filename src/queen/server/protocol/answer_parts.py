"""Large answers, rendered and sent a part at a time.

Rendering takes the event loop for itself, so nobody else is served meanwhile, and what is
rendered is held until the client has read it. Therefore a part is rendered, sent, and mostly
gone before the next one is; and between two parts others have their turn.

An answer that is no more than one part goes out whole, with its length ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import chain

from queen.core.frame import CONTENT_TYPE
from queen.server.protocol.http import JSON_HEADERS, Headers, Request, Response

PART_BYTES = 512 * 1024
FRAME_HEADERS: Headers = (("content-type", CONTENT_TYPE),)


async def answer_in_parts(
    request: Request, bits: Iterable[bytes], headers: Headers = JSON_HEADERS
) -> Response | None:
    """Answer with what is rendered bit by bit; `is_gone` says if the client did not stay."""
    parts = _parts(bits)
    first, second = next(parts, b""), next(parts, None)
    if second is None:
        return Response(200, first, headers)
    request.connection.start_stream(request, Response(200, headers=headers))
    for part in chain((first, second), parts):
        if not await _send(request, part):
            return None
    request.connection.end_stream()
    return None


async def stream_pages(
    request: Request, pages: AsyncGenerator[bytes, None], headers: Headers
) -> None:
    """Answer with pages as they are read; the next is read when the last one is on its way."""
    async with aclosing(pages):
        # The first page is read before the status is sent: its failure is still a real 503.
        page = await anext(pages, b"")
        request.connection.start_stream(request, Response(200, headers=headers))
        while page:
            for part in _cut(page):
                if not await _send(request, part):
                    return
            # It is not held while the next one is read.
            page = b""
            page = await anext(pages, b"")
    request.connection.end_stream()


async def _send(request: Request, part: bytes) -> bool:
    is_there = await request.connection.send(part)
    # A client that reads as fast as we write never makes us wait.
    await asyncio.sleep(0)
    return is_there


def _parts(bits: Iterable[bytes]) -> Iterator[bytes]:
    """Put bits together, or cut them, to parts of about the same size."""
    gathered: list[bytes] = []
    size = 0
    for bit in bits:
        gathered.append(bit)
        size += len(bit)
        if size >= PART_BYTES:
            whole = b"".join(gathered)
            gathered, size = [], 0
            yield from _cut(whole)
    if gathered:
        yield b"".join(gathered)


def _cut(whole: bytes) -> Iterator[bytes]:
    if len(whole) <= 2 * PART_BYTES:
        yield whole
        return
    for at in range(0, len(whole), PART_BYTES):
        yield whole[at : at + PART_BYTES]


async def stream_frames(request: Request, pages: AsyncGenerator[bytes, None]) -> None:
    """Answer with frames as they are read."""
    await stream_pages(request, pages, FRAME_HEADERS)

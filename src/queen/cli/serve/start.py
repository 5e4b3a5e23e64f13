"""Everything between the options of `queen serve` and a server that can run."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from queen.cli.serve.database import (
    DatabaseInUse,
    default_data_dir,
    users_database,
    warn_about_link,
)
from queen.cli.serve.processes import say
from queen.cli.serve.spool import SpoolChoices, spool_settings
from queen.core.cipher import parse_keys
from queen.errors import Unavailable
from queen.server.api.logs import configure_logs
from queen.server.auth.keys import Keys
from queen.server.auth.options import AuthOptions, auth_options
from queen.server.auth.security import Security
from queen.server.protocol.connections import ConnectionLimits
from queen.server.resp.serving import RespOptions
from queen.server.run import ServeOptions, listen, listen_for_resp
from queen.server.stream_backend import check_stream_backend
from queen.service.admin.tokens import Tokens
from queen.service.broker import Limits
from queen.service.preparation import Requirements, answers, prepare
from queen.spool.folder import SpoolRoot
from queen.storage.database import Database

__all__ = [
    "ConnectionLimits",
    "Limits",
    "RespOptions",
    "Security",
    "ServeOptions",
    "auth_options",
    "check_stream_backend",
    "prepare_to_serve",
]

_log = logging.getLogger(__name__)


# How long to leave a database alone that does not answer.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


@contextmanager
def prepare_to_serve(
    options: ServeOptions,
    url: str | None,
    data_dir: Path | None,
    spool: SpoolChoices,
    allow_weak: bool,
) -> Iterator[ServeOptions | None]:
    """Check what can be checked before anything is started, then have a database ready.

    None when we were told to stop before there was one.
    """
    configure_logs(options.log_level, options.log_format)
    options.security.check(options.host)
    if options.resp is not None:
        options.security.check(options.resp.host)
    if options.test_clock:
        _log.warning("the test clock is on: clients can make everything stored here older")
    # A port that is taken is found out before anything else is done.
    alone = msgspec.structs.replace(options, shared=False)
    with listen(alone), listen_for_resp(alone) or nullcontext():
        pass
    requirements = Requirements(allow_weak, bool(parse_keys(options.encryption_keys)))
    url = users_database(url)
    settings = spool_settings(spool, url, data_dir or default_data_dir())
    root = None if settings is None else SpoolRoot(settings.folder, settings.owner)
    with DatabaseInUse(url, data_dir) as dsn:
        warn_about_link(dsn)
        folder = None if url else str(data_dir or default_data_dir())
        options = msgspec.structs.replace(options, dsn=dsn, spool=settings, data_dir=folder)
        preparing = partial(_prepare, dsn, requirements, options.security.auth)
        if root is not None and root.is_known() and not asyncio.run(answers(dsn)):
            _log.warning("the database is away: pushes wait in the spool until it is back")
            yield msgspec.structs.replace(options, unprepared=requirements)
            return
        is_ready = asyncio.run(_unless_stopped(_wait_for_database(preparing)))
        if root is not None and is_ready:
            root.remember()
        yield options if is_ready else None


async def _unless_stopped(work: Coroutine[Any, Any, None]) -> bool:
    """Do something to its end; false when we are told to stop before that."""
    task = asyncio.create_task(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _wait_for_database(prepare: Callable[[], Awaitable[None]]) -> None:
    """Prepare as soon as there is a database that answers, and say for what we wait."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await prepare()
        except Unavailable as error:
            _log.warning("waiting for the database, trying again in %.0f s: %s", pause_s, error)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


async def _prepare(dsn: str, requirements: Requirements, auth: AuthOptions) -> None:
    await prepare(dsn, requirements)
    if auth.jwt is not None:
        await Keys(auth.jwt).start()
    if auth.tokens:
        await _make_first_token(dsn)


async def _make_first_token(dsn: str) -> None:
    database = await Database.connect(dsn, size=1)
    try:
        first = await Tokens(database).first()
        if first is not None:
            say(f"The first admin token, shown only now: {first.text}")
    finally:
        await database.close()

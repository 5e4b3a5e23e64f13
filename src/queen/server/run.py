"""One server process: the broker, Granian in front of it, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable

import msgspec
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from queen.errors import StartupError
from queen.server.app import App
from queen.service.broker import Broker, Limits


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    dsn: str
    host: str = "127.0.0.1"
    port: int = 6632
    limits: Limits = Limits()


def check_port(host: str, port: int) -> None:
    """Refuse a port that is taken. Granian shares ports between workers and would not notice."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartupError(f"cannot listen on {host}:{port}: {error.strerror}") from error


async def serve(options: ServeOptions, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then let requests that are under way finish."""
    _calm_collector()
    broker = await Broker.start(options.dsn, options.limits)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    server = Server(
        App(broker),
        address=options.host,
        port=options.port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        log_enabled=False,
    )
    serving = asyncio.create_task(server.serve())
    try:
        await _listening(options, serving)
        ready()
        await asyncio.wait(
            (serving, asyncio.create_task(stopping.wait())), return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        # Parked polls are answered first: Granian waits for every open request.
        await broker.popper.close()
        server.stop()  # type: ignore[no-untyped-call]
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await broker.stop()


def _calm_collector() -> None:
    """Requests free what they use by themselves; the collector need not look so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _listening(options: ServeOptions, serving: asyncio.Task[None]) -> None:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)  # noqa: S104
    for _ in range(200):
        if serving.done():
            serving.result()
            raise StartupError("the HTTP server ended before it was ready")
        try:
            _, writer = await asyncio.open_connection(host, options.port)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    raise StartupError(f"nothing answers on {host}:{options.port}")

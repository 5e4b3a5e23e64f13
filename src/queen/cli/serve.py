"""`queen serve`: PostgreSQL if none is given, the schema, and the server."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

import typer

from queen.errors import QueenError, StartupError

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Event

    from queen.server.auth.options import AuthOptions
    from queen.server.run import ServeOptions

# EX_CONFIG of sysexits.h: the configuration forbids to start.
_EXIT_CONFIG = 78

Host = Annotated[str, typer.Option(envvar=["QUEEN_HOST", "HOST"], help="Address to listen on.")]
Port = Annotated[
    int, typer.Option(envvar=["QUEEN_PORT", "PORT"], min=1, max=65535, help="Port to listen on.")
]
Workers = Annotated[
    int, typer.Option(envvar="QUEEN_WORKERS", min=1, max=64, help="Server processes.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(envvar="QUEEN_DATA_DIR", help="Where the embedded PostgreSQL keeps its data."),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(envvar="QUEEN_DATABASE_URL", help="Use this PostgreSQL (15 or newer) instead."),
]
DedupHashes = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_DEDUP_HASHES",
        min=20_000,
        help="Transaction ids each process remembers for dedup, twelve bytes each.",
    ),
]
TraceDays = Annotated[
    int,
    typer.Option(envvar="QUEEN_TRACE_DAYS", min=1, max=3650, help="Traces are kept this long."),
]
MetricsDays = Annotated[
    int,
    typer.Option(
        envvar=["QUEEN_METRICS_RETENTION_DAYS", "METRICS_RETENTION_DAYS"],
        min=1,
        max=3650,
        help="Days that throughput and other numbers about the past are kept.",
    ),
]
MetricsQueues = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_METRICS_QUEUES",
        min=0,
        max=10_000,
        help="Queues that have Prometheus metrics of their own; the others are one, `other`.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(envvar="QUEEN_INSECURE", help="Listen beyond loopback without authentication."),
]
RetentionInterval = Annotated[
    int,
    typer.Option(
        envvar=["QUEEN_RETENTION_INTERVAL", "RETENTION_INTERVAL"],
        min=10,
        help="Milliseconds between two searches for messages that are too old.",
    ),
]
AbandonedDays = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_ABANDONED_GROUP_DAYS",
        min=1,
        help="A group unused for so long no longer holds completed messages back.",
    ),
]
IdleDays = Annotated[
    int,
    typer.Option(
        envvar=["QUEEN_PARTITION_CLEANUP_DAYS", "PARTITION_CLEANUP_DAYS"],
        min=0,
        help="Remove partitions that are empty and unused for so long; 0 keeps them.",
    ),
]
EncryptionKey = Annotated[
    str,
    typer.Option(
        envvar="QUEEN_ENCRYPTION_KEY",
        help="Keys for encrypted queues, 64 hexadecimal digits each, separated by commas: the "
        "first one encrypts, all of them decrypt. Better set in the environment.",
        show_default=False,
    ),
]
AllowWeak = Annotated[
    bool,
    typer.Option(
        envvar="QUEEN_ALLOW_WEAK_DURABILITY",
        help="Start although PostgreSQL may lose what it has confirmed.",
    ),
]
Auth = Annotated[
    str,
    typer.Option(
        envvar="QUEEN_AUTH",
        help="Who may come in: none, tokens, jwt, or tokens,jwt. JWT is configured by JWT_*.",
    ),
]
OpenMetrics = Annotated[
    bool, typer.Option(envvar="QUEEN_OPEN_METRICS", help="Show metrics without a token.")
]
TlsCert = Annotated[
    str, typer.Option(envvar="QUEEN_TLS_CERT", help="Certificate chain in PEM; turns TLS on.")
]
TlsKey = Annotated[str, typer.Option(envvar="QUEEN_TLS_KEY", help="Its private key in PEM.")]
CorsOrigin = Annotated[
    list[str],
    typer.Option(envvar="QUEEN_CORS_ORIGINS", help="A web origin that may ask; repeatable."),
]
MaxConnections = Annotated[
    int, typer.Option(envvar="QUEEN_MAX_CONNECTIONS", min=1, help="Connections each process takes.")
]
MaxConnectionsPerAddress = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_MAX_CONNECTIONS_PER_ADDRESS", min=1, help="Of these, from one address."
    ),
]
ShowSettings = Annotated[
    bool, typer.Option(help="Print the settings chosen for the embedded PostgreSQL and exit.")
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 6632,
    workers: Workers = 1,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    dedup_hashes: DedupHashes = 2_000_000,
    trace_days: TraceDays = 30,
    encryption_key: EncryptionKey = "",
    metrics_retention_days: MetricsDays = 90,
    metrics_queues: MetricsQueues = 100,
    retention_interval: RetentionInterval = 10_000,
    abandoned_group_days: AbandonedDays = 7,
    partition_cleanup_days: IdleDays = 30,
    auth: Auth = "none",
    insecure: Insecure = False,
    open_metrics: OpenMetrics = False,
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    cors_origin: CorsOrigin = [],  # noqa: B006 (typer reads it and nobody changes it)
    max_connections: MaxConnections = 10_000,
    max_connections_per_address: MaxConnectionsPerAddress = 5_000,
    allow_weak_durability: AllowWeak = False,
    show_settings: ShowSettings = False,
) -> None:
    """Start a broker. Without a database URL it brings its own PostgreSQL."""
    if show_settings:
        _print_settings()
        return
    from queen.core.cipher import parse_keys
    from queen.server.auth.options import auth_options
    from queen.server.logs import configure_logs
    from queen.server.run import ServeOptions, listen
    from queen.server.security import Security
    from queen.service.broker import Limits

    configure_logs()
    try:
        security = Security(
            auth=auth_options(auth, os.environ, open_metrics=open_metrics),
            insecure=insecure,
            tls_cert=tls_cert,
            tls_key=tls_key,
            origins=tuple(cors_origin),
            max_connections=max_connections,
            max_connections_per_address=max_connections_per_address,
        )
        security.check(host)
        # A port that is taken is found out before anything else is done.
        listen(ServeOptions(dsn="", host=host, port=port)).close()
        with DatabaseInUse(database_url or url_from_environment(), data_dir) as dsn:
            has_key = bool(parse_keys(encryption_key))
            asyncio.run(_prepare(dsn, allow_weak_durability, has_key, security.auth))
            options = ServeOptions(
                dsn=dsn,
                host=host,
                port=port,
                shared=workers > 1,
                encryption_keys=encryption_key,
                security=security,
                limits=Limits(
                    dedup_hashes=dedup_hashes,
                    trace_days=trace_days,
                    metrics_retention_days=metrics_retention_days,
                    metrics_queues=metrics_queues,
                    retention_interval_s=retention_interval / 1000,
                    abandoned_group_days=abandoned_group_days,
                    idle_partition_days=partition_cleanup_days,
                ),
            )
            _run(options, workers)
    except StartupError as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(_EXIT_CONFIG) from None
    except QueenError as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(1) from None


def url_from_environment() -> str | None:
    """Return a database URL from the original broker's variables; None unless PG_HOST is set."""
    env = os.environ
    host = env.get("PG_HOST")
    if not host:
        return None
    user, password = (
        quote(env.get("PG_USER", "postgres"), safe=""),
        quote(env.get("PG_PASSWORD", "postgres"), safe=""),
    )
    port, name = env.get("PG_PORT", "5432"), quote(env.get("PG_DB", "postgres"), safe="")
    mode = ""
    if env.get("PG_USE_SSL") == "true":
        strict = env.get("PG_SSL_REJECT_UNAUTHORIZED", "true") == "true"
        mode = "?sslmode=verify-full" if strict else "?sslmode=require"
    return f"postgresql://{user}:{password}@{host}:{port}/{name}{mode}"


def default_data_dir() -> Path:
    import platformdirs

    return Path(platformdirs.user_data_dir("queen"))


def _print_settings() -> None:
    from queen.storage.tuning import describe, detect, settings_for

    typer.echo(describe(settings_for(*detect())))


class DatabaseInUse:
    """The database to use: the user's, or the embedded one for as long as we run."""

    def __init__(self, url: str | None, data_dir: Path | None) -> None:
        self._url = url
        self._data_dir = data_dir
        self._stop = threading.Event()

    def __enter__(self) -> str:
        if self._url is not None:
            return self._url
        from queen.storage.embedded import EmbeddedPostgres
        from queen.storage.tuning import detect, settings_for

        folder = self._data_dir or default_data_dir()
        self._embedded = EmbeddedPostgres(folder, settings_for(*detect()))
        self._embedded.start()
        self._watch = threading.Thread(
            target=self._embedded.supervise, args=(self._stop,), daemon=True
        )
        self._watch.start()
        return self._embedded.dsn

    def __exit__(self, *_: object) -> None:
        if self._url is None:
            # Whoever asks twice to stop must not leave a PostgreSQL behind.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._stop.set()
            self._watch.join(timeout=30)
            self._embedded.stop()


def _run(options: ServeOptions, workers: int) -> None:
    shown = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "https" if options.security.tls_cert else "http"

    def ready() -> None:
        _say(f"queen ready on {scheme}://{shown}:{options.port}")

    if workers == 1:
        _serve_here(options, ready)
    else:
        _serve_in_processes(options, workers, ready)


async def _prepare(dsn: str, allow_weak: bool, has_key: bool, auth: AuthOptions) -> None:
    """Bring the schema up to date and look whether the promises of it can be kept."""
    import asyncpg

    from queen.server.auth.keys import Keys
    from queen.service.tokens import Tokens
    from queen.storage.database import Database
    from queen.storage.migrate import migrate

    _warn_about_link(dsn)
    try:
        connection = await asyncpg.connect(dsn, timeout=30)
    except (OSError, asyncpg.PostgresError, TimeoutError) as error:
        raise StartupError(f"cannot connect to PostgreSQL: {error}") from error
    try:
        if connection.get_server_version().major < 15:
            raise StartupError("PostgreSQL 15 or newer is needed")
        await migrate(connection)
    finally:
        await connection.close()
    database = await Database.connect(dsn, size=1)
    try:
        if not allow_weak:
            await database.check_durability()
        if not has_key and await database.fetchval("any_encrypted"):
            raise StartupError(
                "a queue of this database is encrypted; start with QUEEN_ENCRYPTION_KEY"
            )
        if auth.jwt is not None:
            await Keys(auth.jwt).start()
        first = await Tokens(database).first() if auth.tokens else None
        if first is not None:
            _say(f"The first admin token, shown only now: {first.text}")
    finally:
        await database.close()


def _warn_about_link(dsn: str) -> None:
    """Say so when messages cross a network to the database that nobody has verified."""
    from queen.server.auth.options import is_loopback

    parts = urlsplit(dsn)
    host = parts.hostname or ""
    if host and not is_loopback(host) and "sslmode=verify-full" not in parts.query:
        logging.getLogger(__name__).warning(
            "the database is on another machine and its certificate is not verified: "
            "use sslmode=verify-full"
        )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _serve_here(options: ServeOptions, ready: Callable[[], None]) -> None:
    import uvloop

    from queen.server.run import serve

    uvloop.run(serve(options, ready))


def _serve_and_tell(options: ServeOptions, ready: Event) -> None:
    from queen.server.logs import configure_logs

    configure_logs()
    _serve_here(options, ready.set)


def _serve_in_processes(options: ServeOptions, workers: int, ready: Callable[[], None]) -> None:
    """Run several processes that share the port; each is a server of its own to the others."""
    import msgspec

    context = multiprocessing.get_context("spawn")
    events = [context.Event() for _ in range(workers)]
    processes = [
        context.Process(
            target=_serve_and_tell, args=(msgspec.structs.replace(options, worker=number), event)
        )
        for number, event in enumerate(events)
    ]
    for process in processes:
        process.start()

    def stop(*_: object) -> None:
        for process in processes:
            process.terminate()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if all(_is_ready(process, event) for process, event in zip(processes, events, strict=True)):
        ready()
    else:
        stop()
    for process in processes:
        process.join()
    if any(process.exitcode not in (0, -signal.SIGTERM) for process in processes):
        raise QueenError("a server process ended with an error")


def _is_ready(process: BaseProcess, event: Event) -> bool:
    """Wait for a worker; false when it ended instead."""
    while not event.wait(timeout=0.1):
        if not process.is_alive():
            return False
    return True

"""`queen serve`: PostgreSQL if none is given, the schema, and the server.

What it needs is imported when it runs: the other commands need no server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from msgspec.structs import replace

from queen.cli import options as cli
from queen.cli.exits import CONFIG
from queen.cli.options import LogLevel, LogStyle
from queen.cli.serve.processes import run
from queen.errors import MissingExtra, QueenError, StartupError
from queen.extras import require

if TYPE_CHECKING:
    from queen.cli.serve.start import ServeOptions


@contextmanager
def _explain_errors() -> Iterator[None]:
    """Turn our errors into a line on the terminal and an exit code; missing packages first."""
    try:
        require("server", "a server")
        yield
    except (MissingExtra, StartupError) as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(CONFIG) from None
    except QueenError as error:
        typer.echo(f"queen: {error}", err=True)
        raise typer.Exit(1) from None


@_explain_errors()
def serve(
    context: typer.Context,
    host: cli.Host = "127.0.0.1",
    port: cli.Port = 6632,
    workers: cli.Workers = 1,
    data_dir: cli.DataDir = None,
    database_url: cli.DatabaseUrl = None,
    dedup_hashes: cli.DedupHashes = 2_000_000,
    trace_days: cli.TraceDays = 30,
    encryption_key: cli.EncryptionKey = "",
    metrics_retention_days: cli.MetricsDays = 90,
    metrics_queues: cli.MetricsQueues = 100,
    namespace_weights: cli.NamespaceWeights = "",
    retention_interval: cli.RetentionInterval = 10_000,
    merge_after: cli.MergeAfter = 60,
    abandoned_group_days: cli.AbandonedDays = 7,
    partition_cleanup_days: cli.IdleDays = 30,
    auth: cli.Auth = "none",
    insecure: cli.Insecure = False,
    open_metrics: cli.OpenMetrics = False,
    resp_port: cli.RespPort = 0,
    resp_host: cli.RespHost = "",
    resp_max_request: cli.RespMaxRequest = 64 * 1024 * 1024,
    stream_backend: cli.StreamBackend = "durable",
    tls_cert: cli.TlsCert = "",
    tls_key: cli.TlsKey = "",
    cors_origin: cli.CorsOrigin = [],  # noqa: B006 (typer reads it and nobody changes it)
    rate_limit: cli.RateLimit = 0,
    max_connections: cli.MaxConnections = 10_000,
    max_connections_per_address: cli.MaxConnectionsPerAddress = 5_000,
    write_timeout: cli.WriteTimeout = 60,
    spool_dir: cli.SpoolDir = None,
    allow_weak_durability: cli.AllowWeak = False,
    log_level: cli.ServeLogLevel = LogLevel.INFO,
    log_format: cli.LogFormat = LogStyle.TEXT,
    dashboard: cli.Dashboard = True,
    test_clock: cli.TestClock = False,
    show_settings: cli.ShowSettings = False,
) -> None:
    """Start a broker. Without a database URL it brings its own PostgreSQL."""
    from queen.cli.serve.start import ConnectionLimits, Limits, Security, ServeOptions, auth_options

    security = Security(
        auth=auth_options(auth, os.environ, open_metrics=open_metrics), insecure=insecure,
        tls_cert=tls_cert, tls_key=tls_key,
        origins=tuple(cors_origin), rate_limit=rate_limit,
        connections=ConnectionLimits(max_connections, max_connections_per_address, write_timeout),
    )  # fmt: skip
    limits = Limits(
        dedup_hashes=dedup_hashes, trace_days=trace_days,
        metrics_retention_days=metrics_retention_days, metrics_queues=metrics_queues,
        retention_interval_s=retention_interval / 1000, idle_partition_days=partition_cleanup_days,
        abandoned_group_days=abandoned_group_days, merge_after_s=merge_after,
        namespace_weights=_weights(namespace_weights),
    )  # fmt: skip
    at = ServeOptions(host=host, port=port, security=security, limits=limits, dashboard=dashboard)
    at = replace(at, encryption_keys=encryption_key, test_clock=test_clock,
                 log_level=log_level.value, log_format=log_format.value)  # fmt: skip
    at = _with_resp(at, stream_backend, resp_port, resp_host, resp_max_request)
    _serve(context, at, database_url, data_dir, spool_dir, allow_weak_durability, workers)


def _weights(text: str) -> dict[str, int]:
    from queen.core.pacing.shares import parse_weights

    try:
        return parse_weights(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--namespace-weights") from None


def _with_resp(
    options: ServeOptions, backend: str, port: int, host: str, request_bytes: int
) -> ServeOptions:
    """Return options that say where streams are, and that serve clients of Redis too, if they are
    to be served."""
    from queen.cli.serve.start import RespOptions

    options = replace(options, stream_backend=backend)
    if not port:
        return options
    resp = RespOptions(host=host or options.host, port=port, request_bytes=request_bytes)
    return replace(options, resp=resp)


def _serve(
    context: typer.Context,
    options: ServeOptions,
    url: str | None,
    data_dir: Path | None,
    spool_dir: Path | None,
    allow_weak: bool,
    workers: int,
) -> None:
    from queen.cli.serve.settings import told
    from queen.cli.serve.spool import spool_choices
    from queen.cli.serve.start import check_stream_backend, prepare_to_serve

    check_stream_backend(options.stream_backend, workers)
    options = replace(options, settings=told(context))
    spool = spool_choices(spool_dir, os.environ)
    with prepare_to_serve(options, url, data_dir, spool, allow_weak) as at:
        run(at, workers)

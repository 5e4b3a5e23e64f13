"""The options of the commands: each with its variable, its limits and one line of help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queen.cli.complete import group_names, queue_names, stream_group_names, stream_names
from queen.cli.terminal.group_names import wire_name


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogStyle(StrEnum):
    TEXT = "text"
    JSON = "json"


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
NamespaceWeights = Annotated[
    str,
    typer.Option(
        envvar="QUEEN_NAMESPACE_WEIGHTS",
        help="How namespaces share a server that has more to do than it can: billing=3,*=1. "
        "Left out, work is done as it comes.",
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
MergeAfter = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_MERGE_AFTER",
        min=0,
        help="Age in seconds from which small segments are merged into larger ones; 0 keeps them.",
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
RespPort = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_RESP_PORT",
        min=0,
        max=65535,
        help="Port for clients of Redis, who find streams there; 0 serves none.",
    ),
]
RespHost = Annotated[
    str,
    typer.Option(
        envvar="QUEEN_RESP_HOST",
        help="Address of that port; without it the one of --host.",
        show_default=False,
    ),
]
RespMaxRequest = Annotated[
    int,
    typer.Option(
        envvar="QUEEN_RESP_MAX_REQUEST",
        min=64 * 1024,
        max=512 * 1024 * 1024,
        help="Bytes that a single command of such a client may have.",
    ),
]
StreamBackend = Annotated[
    str,
    typer.Option(
        envvar="QUEEN_STREAM_BACKEND",
        help="Where streams with the verbs of Redis are: durable (in PostgreSQL), memory (gone "
        "with the server), or the URL of a Redis server. Both /stream/ and the port for clients "
        "of Redis serve them from there.",
    ),
]
TlsCert = Annotated[
    str, typer.Option(envvar="QUEEN_TLS_CERT", help="Certificate chain in PEM; turns TLS on.")
]
TlsKey = Annotated[str, typer.Option(envvar="QUEEN_TLS_KEY", help="Its private key in PEM.")]
CorsOrigin = Annotated[
    list[str],
    typer.Option(envvar="QUEEN_CORS_ORIGINS", help="A web origin that may ask; repeatable."),
]
RateLimit = Annotated[
    float,
    typer.Option(
        envvar="QUEEN_RATE_LIMIT",
        min=0,
        help="Requests a second that one caller may send to each process; 0 sets no limit.",
    ),
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
WriteTimeout = Annotated[
    float,
    typer.Option(
        envvar="QUEEN_WRITE_TIMEOUT",
        min=1,
        help="Seconds after which a client that reads nothing of its answers is hung up on.",
    ),
]
SpoolDir = Annotated[
    Path | None,
    typer.Option(
        envvar=["QUEEN_SPOOL_DIR", "FILE_BUFFER_DIR"],
        help="Where pushes are kept while the database is away; how is set by QUEEN_SPOOL_*. "
        "Without it: beside the embedded PostgreSQL, or in /var/lib/queen/buffers, or in the "
        "user's state folder.",
        show_default=False,
    ),
]
ServeLogLevel = Annotated[
    LogLevel,
    typer.Option("--log-level", envvar="QUEEN_LOG_LEVEL", help="How much goes to the log."),
]
LogFormat = Annotated[
    LogStyle,
    typer.Option(
        "--log-format",
        envvar="QUEEN_LOG_FORMAT",
        help="Lines for people, or a JSON object on each line.",
    ),
]
Dashboard = Annotated[
    bool,
    typer.Option(
        "--dashboard/--no-dashboard",
        envvar="QUEEN_DASHBOARD",
        help="Serve pages for people at / beside the API; --no-dashboard leaves them out.",
    ),
]
TestClock = Annotated[
    bool,
    typer.Option(
        "--test-clock",
        help="For tests only: let clients move what is stored into the past.",
    ),
]


def _print_settings(is_asked_for: bool) -> None:
    if is_asked_for:
        from queen.storage.tuning import describe, detect, settings_for

        typer.echo(describe(settings_for(*detect())))
        raise typer.Exit


ShowSettings = Annotated[
    bool,
    typer.Option(
        "--show-settings",
        is_eager=True,
        callback=_print_settings,
        help="Print the settings chosen for the embedded PostgreSQL and exit.",
    ),
]

# ---- of the commands that talk to a server ----

Url = Annotated[
    str | None,
    typer.Option(
        envvar="QUEEN_URL",
        help="The server, or several separated by commas. http://localhost:6632 unless given.",
    ),
]
Token = Annotated[str | None, typer.Option(envvar="QUEEN_TOKEN", help="The token to show it.")]
Json = Annotated[bool, typer.Option("--json", help="NDJSON also on a terminal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
QueueName = Annotated[
    str, typer.Argument(metavar="QUEUE", autocompletion=queue_names, help="The name of a queue.")
]
AnyQueue = Annotated[
    str | None,
    typer.Argument(metavar="[QUEUE]", autocompletion=queue_names, help="A queue; all without."),
]
StreamName = Annotated[
    str, typer.Argument(metavar="STREAM", autocompletion=stream_names, help="The name of a stream.")
]
GroupName = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        autocompletion=group_names,
        callback=wire_name,
        help="The name of a group.",
    ),
]
OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        autocompletion=group_names,
        callback=wire_name,
        help="For this consumer group.",
    ),
]
StreamGroupName = Annotated[
    str,
    typer.Argument(metavar="GROUP", autocompletion=stream_group_names, help="The name of a group."),
]
OfStreamGroup = Annotated[
    str | None,
    typer.Option(
        "--group", "-g", autocompletion=stream_group_names, help="For this consumer group."
    ),
]
OfPartition = Annotated[str | None, typer.Option("--partition", "-p", help="Only this partition.")]
OfQueue = Annotated[
    str | None,
    typer.Option("--queue", "-q", autocompletion=queue_names, help="Only in this queue."),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")]
AllOr = Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; all without.")]
Skip = Annotated[int, typer.Option("--offset", min=0, help="Skip so many.")]
Since = Annotated[
    str | None, typer.Option(help="From this time on: ISO-8601, or 15m, 2h, 7d for that long ago.")
]
Until = Annotated[str | None, typer.Option(help="Before this time; written the same way.")]

"""Commands about the server: COMMAND, INFO, CONFIG and TIME. They tell what is true here, and no
more: a client that looks for a setting finds it only if it means something."""

from __future__ import annotations

import fnmatch
import os
import platform
import time
from collections.abc import Callable, Iterator

from queen import __version__
from queen.server.auth.access import Role
from queen.server.resp.client import Client
from queen.server.resp.command_reader import Command
from queen.server.resp.connection_commands import REDIS_VERSION
from queen.server.resp.encoding import Answer, Members, Verbatim
from queen.server.resp.specs import Spec
from queen.streambroker.replies import OK, Failure, Pairs, Reply, Status

# ---- COMMAND ----


def _command(client: Client, _command: Command) -> Answer:
    return [_described(spec) for spec in client.front.specs.values()]


def _count(client: Client, _command: Command) -> Answer:
    return len(client.front.specs)


def _list_commands(client: Client, command: Command) -> Answer:
    pattern = "*"
    if len(command) == 5 and [word.upper() for word in command[2:4]] == [b"FILTERBY", b"PATTERN"]:
        pattern = command[4].decode("utf-8", "replace").lower()
    elif len(command) > 2:
        return Failure("ERR syntax error")
    names = (spec.name for spec in client.front.specs.values())
    listed: list[Reply] = [name.encode() for name in names if _fits(name, pattern)]
    return listed


def _info_of_commands(client: Client, command: Command) -> Answer:
    if len(command) == 2:
        return _command(client, command)
    chosen = [_named(client, name) for name in command[2:]]
    return [None if spec is None else _described(spec) for spec in chosen]


def _docs(client: Client, command: Command) -> Answer:
    chosen = [_named(client, name) for name in command[2:]]
    if len(command) == 2:
        chosen = list(client.front.specs.values())
    pairs: list[Reply] = []
    for spec in chosen:
        if spec is not None:
            group = b"stream" if spec.name.startswith("x") else b"generic"
            about = b"Known here as it is in Redis"
            pairs += (spec.name.encode(), Pairs([b"summary", about, b"group", group]))
    return Pairs(pairs)


def _getkeys(_client: Client, _command: Command) -> Answer:
    return Failure("ERR COMMAND GETKEYS is not offered")


def _named(client: Client, name: bytes) -> Spec | None:
    container, _, subcommand = name.upper().partition(b"|")
    spec = client.front.specs.get(container)
    return spec.subcommands.get(subcommand) if spec is not None and subcommand else spec


def _described(spec: Spec) -> Answer:
    first, last, step = spec.keys
    flags: list[Answer] = [Status(flag.encode()) for flag in spec.flags]
    described: list[Answer] = [
        spec.name.encode(),
        spec.arity,
        Members(flags),
        first,
        last,
        step,
        Members([Status(category) for category in _categories(spec)]),
        [],
        [],
        [_described(subcommand) for subcommand in spec.subcommands.values()],
    ]
    return described


def _categories(spec: Spec) -> Iterator[bytes]:
    if "write" in spec.flags:
        yield b"@write"
    if "readonly" in spec.flags:
        yield b"@read"
    if spec.name.startswith("x"):
        yield b"@stream"
    if "blocking" in spec.flags:
        yield b"@blocking"
    if spec.role is Role.ADMIN:
        yield b"@dangerous"
    yield b"@fast" if "fast" in spec.flags else b"@slow"


# ---- INFO ----


def _info(client: Client, command: Command) -> Answer:
    wanted = {word.lower() for word in command[1:]} or {b"default"}
    takes_all = not wanted.isdisjoint((b"default", b"all", b"everything"))
    parts = [
        f"# {name}\r\n" + "".join(f"{field}:{value}\r\n" for field, value in fields(client))
        for name, fields in _SECTIONS.items()
        if takes_all or name.lower().encode() in wanted
    ]
    return Verbatim("\r\n".join(parts).encode())


Fields = Iterator[tuple[str, object]]


def _server_section(client: Client) -> Fields:
    front = client.front
    uptime_s = int(time.monotonic() - front.began_at)
    yield "redis_version", REDIS_VERSION
    yield "queen_version", __version__
    yield "server_name", "queen"
    yield "redis_mode", "standalone"
    yield "os", f"{platform.system()} {platform.machine()}"
    yield "arch_bits", 64
    yield "process_id", os.getpid()
    yield "tcp_port", front.port
    yield "uptime_in_seconds", uptime_s
    yield "uptime_in_days", uptime_s // 86400


def _clients_section(client: Client) -> Fields:
    counts = client.front.counts
    yield "connected_clients", counts.connections
    yield "maxclients", client.front.limits.connections.total
    yield "blocked_clients", counts.waiting


def _memory_section(client: Client) -> Fields:
    yield "mem_clients_normal", client.front.held_bytes


def _persistence_section(_client: Client) -> Fields:
    # Whatever was answered is in the database.
    yield "loading", 0


def _stats_section(client: Client) -> Fields:
    counts, base = client.front.counts, client.front.base_counts
    yield "total_connections_received", counts.accepted - base.accepted
    yield "total_commands_processed", counts.commands - base.commands
    yield "total_net_input_bytes", counts.bytes_read - base.bytes_read
    yield "total_net_output_bytes", counts.bytes_written - base.bytes_written
    yield "rejected_connections", counts.refused - base.refused
    yield "total_error_replies", counts.failures - base.failures


def _replication_section(_client: Client) -> Fields:
    yield "role", "master"
    yield "connected_slaves", 0


def _cluster_section(_client: Client) -> Fields:
    yield "cluster_enabled", 0


_SECTIONS: dict[str, Callable[[Client], Fields]] = {
    "Server": _server_section,
    "Clients": _clients_section,
    "Memory": _memory_section,
    "Persistence": _persistence_section,
    "Stats": _stats_section,
    "Replication": _replication_section,
    "Cluster": _cluster_section,
}


# ---- CONFIG and TIME ----


def _config(client: Client) -> dict[str, str]:
    limits = client.front.limits
    return {
        "appendonly": "yes",
        "databases": "1",
        "maxclients": str(limits.connections.total),
        "maxmemory": "0",
        "port": str(client.front.port),
        "proto-max-bulk-len": str(limits.request_bytes),
        "save": "",
        "timeout": "0",
    }


def _config_get(client: Client, command: Command) -> Answer:
    pairs: list[Reply] = []
    patterns = [word.decode("utf-8", "replace").lower() for word in command[2:]]
    for name, value in _config(client).items():
        if any(_fits(name, pattern) for pattern in patterns):
            pairs += (name.encode(), value.encode())
    return Pairs(pairs)


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _config_set(client: Client, command: Command) -> Answer:
    if len(command) % 2:
        return Failure("ERR wrong number of arguments for 'config|set' command")
    for word in command[2::2]:
        name = word.decode("utf-8", "surrogateescape")
        if name.lower() not in _config(client):
            return Failure(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
    name = command[2].decode("utf-8", "surrogateescape")
    return Failure(
        f"ERR CONFIG SET failed (possibly related to argument '{name}') - "
        "can't set immutable config"
    )


def _config_resetstat(client: Client, _command: Command) -> Answer:
    client.front.reset_counts()
    return OK


def _time(_client: Client, _command: Command) -> Answer:
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    parts: list[Reply] = [str(seconds).encode(), str(microseconds).encode()]
    return parts


_TELLS = ("loading", "stale")
_ADMIN = ("admin", "noscript", "loading", "stale")


def _by_name(*specs: Spec) -> dict[bytes, Spec]:
    return {spec.name.partition("|")[2].upper().encode(): spec for spec in specs}


SERVER_SPECS = (
    Spec(
        "command",
        -1,
        Role.READ,
        _TELLS,
        answer=_command,
        subcommands=_by_name(
            Spec("command|count", 2, Role.READ, _TELLS, answer=_count),
            Spec("command|docs", -2, Role.READ, _TELLS, answer=_docs),
            Spec("command|info", -2, Role.READ, _TELLS, answer=_info_of_commands),
            Spec("command|list", -2, Role.READ, _TELLS, answer=_list_commands),
            Spec("command|getkeys", -3, Role.READ, _TELLS, answer=_getkeys),
        ),
    ),
    Spec("info", -1, Role.READ, _TELLS, answer=_info),
    Spec(
        "config",
        -2,
        Role.READ,
        subcommands=_by_name(
            Spec("config|get", -3, Role.READ, _ADMIN, answer=_config_get),
            Spec("config|set", -4, Role.ADMIN, _ADMIN, answer=_config_set, is_global=True),
            Spec(
                "config|resetstat", 2, Role.ADMIN, _ADMIN, answer=_config_resetstat, is_global=True
            ),
        ),
    ),
    Spec("time", 1, Role.READ, ("loading", "stale", "fast"), answer=_time),
)

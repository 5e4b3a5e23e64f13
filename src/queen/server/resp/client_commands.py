"""CLIENT: what clients say about themselves, and what an administrator does with others.

A server process knows its own clients only; of several processes on a port each has its own.
"""

from __future__ import annotations

import time

from queen.server.auth.access import Role
from queen.server.resp.client import Client, ReplyMode
from queen.server.resp.command_reader import Command
from queen.server.resp.connection_commands import bad_name, is_good_name
from queen.server.resp.encoding import Answer, NoReply, Verbatim
from queen.server.resp.specs import Spec
from queen.streambroker.replies import NO_ARRAY, OK, Failure

_SYNTAX_ERROR = Failure("ERR syntax error")
_UNBLOCKED = Failure("UNBLOCKED client unblocked via CLIENT UNBLOCK")


# ---- about itself ----


def _id(client: Client, _command: Command) -> Answer:
    return client.id


def _getname(client: Client, _command: Command) -> Answer:
    return client.name or None


def _setname(client: Client, command: Command) -> Answer:
    if not is_good_name(command[2]):
        return bad_name()
    client.name = command[2]
    return OK


def _setinfo(client: Client, command: Command) -> Answer:
    attribute = command[2].decode("utf-8", "surrogateescape").lower()
    if attribute not in client.library:
        shown = command[2].decode("utf-8", "surrogateescape")
        return Failure(f"ERR Unrecognized option '{shown}'")
    if not is_good_name(command[3]):
        return Failure(f"ERR {attribute} cannot contain spaces, newlines or special characters.")
    client.library[attribute] = command[3]
    return OK


def _switch(_client: Client, command: Command) -> Answer:
    """NO-EVICT and NO-TOUCH: nothing is evicted here, and nothing is touched by reading."""
    return OK if command[2].upper() in (b"ON", b"OFF") else _SYNTAX_ERROR


def _reply(client: Client, command: Command) -> Answer:
    mode = command[2].upper()
    if mode == b"ON":
        client.reply_mode = ReplyMode.ON
        return OK
    if mode == b"OFF":
        client.reply_mode = ReplyMode.OFF
    elif mode == b"SKIP":
        if client.reply_mode is ReplyMode.ON:
            client.reply_mode = ReplyMode.SKIP_NEXT
    else:
        return _SYNTAX_ERROR
    return NoReply()


def _maint_notifications(_client: Client, _command: Command) -> Answer:
    return Failure("ERR maintenance notifications are not offered")


def _getredir(_client: Client, _command: Command) -> Answer:
    return -1


# ---- about others ----


def _info(client: Client, _command: Command) -> Answer:
    return Verbatim(_line(client))


def _list(client: Client, command: Command) -> Answer:
    clients = client.front.clients
    words = [word.upper() for word in command[2:4]]
    if not words:
        chosen = list(clients.values())
    elif words[0] == b"ID" and len(command) > 3:
        if not all(word.isdigit() for word in command[3:]):
            return Failure("ERR Invalid client ID")
        chosen = [clients[int(word)] for word in command[3:] if int(word) in clients]
    elif words[0] == b"TYPE" and len(command) == 4:
        # All of them are of the same type.
        chosen = list(clients.values()) if words[1] == b"NORMAL" else []
    else:
        return _SYNTAX_ERROR
    return Verbatim(b"".join(_line(listed) for listed in chosen))


def _line(client: Client) -> bytes:
    now = time.monotonic()
    queue = -1 if client.transaction is None else len(client.transaction.commands)
    flags = ("b" if client.is_waiting else "") + ("x" if queue >= 0 else "") or "N"
    fields: tuple[tuple[str, object], ...] = (
        ("id", client.id),
        ("addr", client.address),
        ("laddr", client.local_address),
        ("fd", -1),
        ("name", client.name.decode("ascii")),
        ("age", int(now - client.began_at)),
        ("idle", int(now - client.active_at)),
        ("flags", flags),
        ("db", 0),
        ("sub", 0),
        ("psub", 0),
        ("ssub", 0),
        ("multi", queue),
        ("watch", 0),
        ("qbuf", client.front.held_by(client)),
        ("cmd", client.last_command),
        ("user", client.user.replace(" ", "_")),
        ("redir", -1),
        ("resp", 3 if client.is_resp3 else 2),
        ("lib-name", client.library["lib-name"].decode("ascii")),
        ("lib-ver", client.library["lib-ver"].decode("ascii")),
    )
    line = " ".join(f"{name}={value}" for name, value in fields)
    return line.encode("utf-8", "replace").replace(b"\n", b" ") + b"\n"


def _kill(client: Client, command: Command) -> Answer:
    if len(command) == 3:
        address = command[2].decode("utf-8", "replace")
        killed = [other for other in client.front.clients.values() if other.address == address]
        if not killed:
            return Failure("ERR No such client")
        client.front.hang_up(killed, by=client)
        return OK
    try:
        conditions, skips_me = _conditions(command[2:])
    except Failure as failure:
        return failure
    killed = [
        other
        for other in client.front.clients.values()
        if all(getattr(other, name) == value for name, value in conditions.items())
        and not (skips_me and other is client)
    ]
    client.front.hang_up(killed, by=client)
    return len(killed)


def _conditions(options: Command) -> tuple[dict[str, object], bool]:
    """Return what holds for those that are to be hung up on, and whether the caller is spared."""
    if len(options) % 2:
        raise _SYNTAX_ERROR
    conditions: dict[str, object] = {}
    skips_me = True
    for option, value in zip(options[::2], options[1::2], strict=True):
        text = value.decode("utf-8", "replace")
        match option.upper():
            case b"ID":
                if not value.isdigit() or not int(value):
                    raise Failure("ERR client-id should be greater than 0")
                conditions["id"] = int(value)
            case b"ADDR":
                conditions["address"] = text
            case b"LADDR":
                conditions["local_address"] = text
            case b"USER":
                conditions["user"] = text
            case b"SKIPME" if value.upper() in (b"YES", b"NO"):
                skips_me = value.upper() == b"YES"
            case _:
                raise _SYNTAX_ERROR
    return conditions, skips_me


def _unblock(client: Client, command: Command) -> Answer:
    how = command[3].upper() if len(command) == 4 else b"TIMEOUT"
    if len(command) > 4 or how not in (b"TIMEOUT", b"ERROR"):
        return Failure("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    if not command[2].isdigit():
        return Failure("ERR value is not an integer or out of range")
    other = client.front.clients.get(int(command[2]))
    reply = NO_ARRAY if how == b"TIMEOUT" else _UNBLOCKED
    return int(other is not None and other.end_wait(reply))


_ADMIN = ("admin", "noscript", "loading", "stale")
_OWN = ("noscript", "loading", "stale")

_SPECS = (
    Spec("client|id", 2, Role.READ, _OWN, answer=_id),
    Spec("client|getname", 2, Role.READ, _OWN, answer=_getname),
    Spec("client|setname", 3, Role.READ, _OWN, answer=_setname),
    Spec("client|setinfo", 4, Role.READ, _OWN, answer=_setinfo),
    Spec("client|getredir", 2, Role.READ, _OWN, answer=_getredir),
    Spec("client|info", 2, Role.READ, _OWN, answer=_info),
    Spec("client|no-evict", 3, Role.READ, _OWN, answer=_switch),
    Spec("client|no-touch", 3, Role.READ, _OWN, answer=_switch),
    Spec("client|reply", 3, Role.READ, ("no_multi", *_OWN), answer=_reply),
    Spec("client|maint_notifications", -2, Role.READ, _OWN, answer=_maint_notifications),
    Spec("client|list", -2, Role.ADMIN, (*_ADMIN, "readonly"), answer=_list, is_global=True),
    Spec("client|kill", -3, Role.ADMIN, _ADMIN, answer=_kill, is_global=True),
    Spec("client|unblock", -3, Role.ADMIN, _ADMIN, answer=_unblock, is_global=True),
)
CLIENT_SPEC = Spec(
    "client",
    -2,
    Role.READ,
    subcommands={spec.name.partition("|")[2].upper().encode(): spec for spec in _SPECS},
)

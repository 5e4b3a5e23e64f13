"""Commands about the connection itself: who calls, in which protocol, and its transaction."""

from __future__ import annotations

from queen.server.auth.access import Role
from queen.server.resp.client import DEFAULT_USER, Client, Transaction
from queen.server.resp.command_reader import Command
from queen.server.resp.encoding import Answer
from queen.server.resp.specs import Spec
from queen.streambroker.replies import OK, Failure, Pairs, Reply, Status

# The streams of this version are what is offered.
REDIS_VERSION = "8.8.0"
MUST_SHOW_TOKEN = Failure("NOAUTH Authentication required.")
_MUST_SHOW_TOKEN_IN_HELLO = Failure(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO "
    "<proto> AUTH <user> <pass> option can be used to authenticate the client and select the "
    "RESP protocol version at the same time"
)
NOT_IN_TRANSACTION = Failure("ERR Command not allowed inside a transaction")
_BAD_NAME = Failure("ERR Client names cannot contain spaces, newlines or special characters.")


# ---- small talk ----


def _ping(_client: Client, command: Command) -> Answer:
    if len(command) > 2:
        return Failure("ERR wrong number of arguments for 'ping' command")
    return command[1] if len(command) == 2 else Status(b"PONG")


def _echo(_client: Client, command: Command) -> Answer:
    return command[1]


def _quit(client: Client, _command: Command) -> Answer:
    client.is_leaving = True
    return OK


def _reset(client: Client, _command: Command) -> Answer:
    client.begin_anew()
    return Status(b"RESET")


def _select(_client: Client, command: Command) -> Answer:
    try:
        number = int(command[1])
    except ValueError:
        return Failure("ERR value is not an integer or out of range")
    return OK if number == 0 else Failure("ERR DB index is out of range")


# ---- who calls ----


async def _auth(client: Client, command: Command) -> Answer:
    if client.transaction is not None:
        return NOT_IN_TRANSACTION
    if len(command) > 3:
        return Failure("ERR syntax error")
    if len(command) == 2 and client.front.authenticate is None:
        return Failure(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    user = command[1] if len(command) == 3 else DEFAULT_USER.encode()
    await client.authenticate(user, command[-1])
    return OK


async def _hello(client: Client, command: Command) -> Answer:
    if client.transaction is not None:
        return NOT_IN_TRANSACTION
    is_resp3 = client.is_resp3
    if len(command) > 1:
        try:
            version = int(command[1])
        except ValueError:
            return Failure("ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            return Failure("NOPROTO unsupported protocol version")
        is_resp3 = version == 3
    name = await _heed_options(client, command[2:])
    if client.caller is None:
        return _MUST_SHOW_TOKEN_IN_HELLO
    if name is not None:
        client.name = name
    client.is_resp3 = is_resp3
    return _greeting(client)


async def _heed_options(client: Client, options: Command) -> bytes | None:
    """Authenticate if it is asked for, and return the name that the client gives itself."""
    name = None
    at = 0
    while at < len(options):
        option = options[at].upper()
        if option == b"AUTH" and at + 2 < len(options):
            await client.authenticate(options[at + 1], options[at + 2])
            at += 3
        elif option == b"SETNAME" and at + 1 < len(options):
            name = options[at + 1]
            if not is_good_name(name):
                raise _BAD_NAME
            at += 2
        else:
            shown = options[at].decode("utf-8", "surrogateescape")
            raise Failure(f"ERR Syntax error in HELLO option '{shown}'")
    return name


def is_good_name(name: bytes) -> bool:
    return all(33 <= byte <= 126 for byte in name)


def bad_name() -> Failure:
    return _BAD_NAME


def _greeting(client: Client) -> Pairs:
    modules: list[Reply] = []
    return Pairs(
        [
            *(b"server", b"redis"),
            *(b"version", REDIS_VERSION.encode()),
            *(b"proto", 3 if client.is_resp3 else 2),
            *(b"id", client.id),
            *(b"mode", b"standalone"),
            *(b"role", b"master"),
            *(b"modules", modules),
        ]
    )


# ---- transactions ----


def _multi(client: Client, _command: Command) -> Answer:
    if client.transaction is not None:
        return Failure("ERR MULTI calls can not be nested")
    client.transaction = Transaction()
    return OK


def _discard(client: Client, _command: Command) -> Answer:
    if client.transaction is None:
        return Failure("ERR DISCARD without MULTI")
    client.transaction = None
    return OK


async def _exec(client: Client, _command: Command) -> Answer:
    transaction, client.transaction = client.transaction, None
    if transaction is None:
        return Failure("ERR EXEC without MULTI")
    if transaction.is_bad:
        return Failure("EXECABORT Transaction discarded because of previous errors.")
    handed_on = [command for spec, command in transaction.commands if spec.is_handed_on]
    in_turn = iter(await client.execute(handed_on, is_atomic=True) if handed_on else ())
    return [
        next(in_turn) if spec.answer is None else spec.answer(client, command)
        for spec, command in transaction.commands
    ]


def _watch(client: Client, _command: Command) -> Answer:
    if client.transaction is not None:
        return Failure("ERR WATCH inside MULTI is not allowed")
    return Failure("ERR WATCH is not supported: a transaction here is all or nothing without it")


def _unwatch(_client: Client, _command: Command) -> Answer:
    return OK


_NO_AUTH = ("noscript", "loading", "stale", "fast", "no_auth")
_FAST = ("loading", "stale", "fast")

CONNECTION_SPECS = (
    Spec("ping", -1, Role.READ, ("fast",), answer=_ping),
    Spec("echo", 2, Role.READ, _FAST, answer=_echo),
    Spec("quit", -1, Role.OPEN, _NO_AUTH, answer=_quit),
    Spec("reset", 1, Role.OPEN, _NO_AUTH, answer=_reset),
    Spec("select", 2, Role.READ, _FAST, answer=_select),
    Spec("auth", -2, Role.OPEN, _NO_AUTH, answer_later=_auth),
    Spec("hello", -1, Role.OPEN, _NO_AUTH, answer_later=_hello),
    Spec("multi", 1, Role.READ, ("noscript", "no_multi", *_FAST), answer=_multi),
    Spec("discard", 1, Role.READ, ("noscript", *_FAST), answer=_discard),
    Spec("exec", 1, Role.READ, ("noscript", "loading", "stale"), answer_later=_exec),
    Spec("watch", -2, Role.READ, ("noscript", "no_multi", *_FAST), (1, -1, 1), answer=_watch),
    Spec("unwatch", 1, Role.READ, ("noscript", *_FAST), answer=_unwatch),
)
# Not queued in a transaction.
AT_ONCE = frozenset({"exec", "discard", "multi", "watch", "quit", "reset", "auth", "hello"})

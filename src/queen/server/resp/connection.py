"""A connection of the RESP port: what it sends is run in order and answered in order.

    bytes ──▶ commands that are there ──▶ runs of them to the executor, each in one call
                     ▲                                     │
                     └──────── replies in one write ◀──────┘

While commands run, what comes is only kept, up to a limit; beyond it the socket is not read. A
command that waits holds up those behind it, on this connection only, and the socket is read on:
that is how it is seen that the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from queen.server.api.audit import line_about
from queen.server.auth.access import Role
from queen.server.resp.client import Client, ReplyMode
from queen.server.resp.command_reader import BadProtocol, Command, CommandReader
from queen.server.resp.connection_commands import AT_ONCE, MUST_SHOW_TOKEN, NOT_IN_TRANSACTION
from queen.server.resp.encoding import Answer, NoReply, encode
from queen.server.resp.specs import (
    Spec,
    may_wait,
    unknown_command,
    unknown_subcommand,
    wrong_count,
)
from queen.streambroker.replies import Failure, Reply, Status

if TYPE_CHECKING:
    from queen.server.resp.front import Front

_log = logging.getLogger(__name__)

# More than this of what has not been run is not read, unless a single command is larger.
_AHEAD_BYTES = 1024 * 1024
# Who holds less than this is not hung up on for what all hold together.
_SMALL_BYTES = 256 * 1024
_WRITE_BYTES = 256 * 1024
# What is run in one call: a heavy command counts as many.
_MOST_IN_A_CALL = 1024
_HEAVY = 64
_CLOSING_S = 30.0
_QUEUED = Status(b"QUEUED")


class RespConnection(asyncio.Protocol):
    def __init__(self, front: Front) -> None:
        self._front = front
        self._reader = CommandReader(front.limits.request_bytes)
        self._task: asyncio.Task[None] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        # Of the commands that are being run.
        self._running_bytes = 0
        self._accounted_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._unread_bytes = 0
        self._unread_since = 0.0
        self._is_paused = False
        # The client has said that nothing more comes.
        self._has_ended = False
        self._is_lost = False
        self._closing_since = 0.0

    # ---- what asyncio calls ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, address = _address(transport.get_extra_info("peername"))
        _, local = _address(transport.get_extra_info("sockname"))
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        client = self._front.add(self, host, address, local)
        if client is None:
            self._is_lost = True
            self._transport.write(b"-ERR max number of clients reached\r\n")
            self._transport.close()
            return
        self._client: Client = client
        bound = transport.get_extra_info("socket")
        if bound is not None:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        self._front.counts.bytes_read += len(data)
        if self._is_lost or self._closing_since:
            return
        self._client.active_at = time.monotonic()
        self._reader.feed(data)
        self._account()
        if self._holds_too_much():
            return
        if self._task is not None:
            self._heed_input()
        elif self._reader.is_worth_reading:
            self._task = asyncio.get_running_loop().create_task(self._work())
            self._front.begin_work(self)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._is_lost or self._task is None:
            return False
        self._client.end_wait(None)
        # What was sent before is still answered, where the transport can stay half open.
        return not self._is_tls

    def connection_lost(self, _error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self._front.remove(self._client)
        self._client.end_wait(None)
        self._drained.set()
        if self._task is None:
            self._give_back()

    def pause_writing(self) -> None:
        self._drained.clear()
        self._unread_since = time.monotonic()
        self._unread_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        self._drained.set()
        self._unread_since = 0.0

    # ---- what it holds ----

    @property
    def held_bytes(self) -> int:
        transaction = self._client.transaction
        queued = 0 if transaction is None else transaction.held_bytes
        return self._reader.held_bytes + self._running_bytes + queued

    def _account(self) -> None:
        held = self.held_bytes
        self._front.held_bytes += held - self._accounted_bytes
        self._accounted_bytes = held

    def _give_back(self) -> None:
        self._front.held_bytes -= self._accounted_bytes
        self._accounted_bytes = 0

    def _holds_too_much(self) -> bool:
        """Hang up on a client that holds more than it may, alone or with all others."""
        limits, held = self._front.limits, self._accounted_bytes
        alone = held > limits.request_bytes + _AHEAD_BYTES
        together = self._front.held_bytes > limits.held_bytes and held > _SMALL_BYTES
        if alone or together:
            self._evict("ERR the commands that are not answered yet are too large")
        return alone or together

    def _evict(self, text: str) -> None:
        self._front.counts.evicted += 1
        _log.warning("client %d is hung up on: %s", self._client.id, text)
        self._transport.write(encode([Failure(text)], is_resp3=False))
        self._reader = CommandReader(self._front.limits.request_bytes)
        self._client.transaction = None
        self._account()
        self.close()

    def _heed_input(self) -> None:
        """Stop reading, or go on: nobody sends more ahead than can be kept."""
        most = self._front.limits.stranger_bytes if self._reader.is_stranger else _AHEAD_BYTES
        is_busy = self._task is not None and not self._client.is_waiting
        shall_pause = is_busy and self._reader.held_bytes > most
        if shall_pause == self._is_paused or self._is_lost or self._closing_since:
            return
        self._is_paused = shall_pause
        if shall_pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ---- running commands ----

    async def _work(self) -> None:
        """Run all that is there."""
        client = self._client
        try:
            while not self._closing_since and self._reader.is_worth_reading:
                reader = self._reader
                reader.is_stranger = client.caller is None
                before = reader.held_bytes
                commands = reader.take()
                self._running_bytes = max(before - reader.held_bytes, 0)
                self._heed_input()
                await self._run(commands)
                self._flush()
                self._running_bytes = 0
                self._account()
                if client.is_leaving:
                    self.close()
                await self._drained.wait()
                if self._reader.is_worth_reading:
                    # Whoever sends much takes turns with the others.
                    await asyncio.sleep(0)
        except BadProtocol as error:
            self._reply([Failure(f"ERR Protocol error: {error}")])
            self._flush()
            self.close()
        except Exception:
            _log.exception("client %d is hung up on", client.id)
            self.abort()
        finally:
            self._rest()

    def _rest(self) -> None:
        self._task = None
        self._running_bytes = 0
        self._front.end_work(self)
        if self._is_lost:
            self._give_back()
            return
        self._account()
        if self._has_ended or self._front.is_stopping:
            self.close()
        self._heed_input()

    async def _run(self, commands: list[Command]) -> None:
        """Run commands; those that the executor takes together go there together."""
        client = self._client
        self._front.counts.commands += len(commands)
        batch: list[Command] = []
        room = _MOST_IN_A_CALL
        for command in commands:
            spec = self._resolve(command)
            if self._is_lost and isinstance(spec, Spec) and "readonly" in spec.flags:
                # What was sent to be written is written; nobody is left to read.
                continue
            if (
                isinstance(spec, Spec)
                and spec.is_handed_on
                and client.transaction is None
                and not ("blocking" in spec.flags and may_wait(command))
            ):
                batch.append(command)
                room -= _HEAVY if spec.is_heavy else 1
                if room > 0:
                    continue
                spec = None
            if batch:
                await self._execute(batch)
                batch, room = [], _MOST_IN_A_CALL
            if spec is not None:
                await self._answer(spec, command)
                if client.is_leaving or self._closing_since:
                    return
        if batch:
            await self._execute(batch)

    def _resolve(self, command: Command) -> Spec | Failure | None:
        """Return what is known of a command, or why this client may not send it like this."""
        client = self._client
        spec = self._front.specs.get(command[0].upper())
        if spec is None:
            return unknown_command(command)
        if spec.subcommands and len(command) > 1:
            spec = spec.subcommands.get(command[1].upper())
            if spec is None:
                return unknown_subcommand(command)
        client.last_command = spec.name
        if not spec.takes(len(command)):
            return wrong_count(spec)
        if spec.role is not Role.OPEN:
            if client.caller is None:
                return MUST_SHOW_TOKEN
            is_allowed = client.may(spec)
            if spec.role is Role.ADMIN and "readonly" not in spec.flags:
                outcome = "asked" if is_allowed else "refused"
                line_about(client.caller, client.host, f"resp.{spec.name}", "", outcome, {})
            if not is_allowed:
                return Failure(
                    f"NOPERM User {client.user} has no permissions to run the '{spec.name}' command"
                )
        return spec

    async def _execute(self, commands: list[Command]) -> None:
        """Run commands and reply; if none was run, each is told so."""
        try:
            replies = await self._client.execute(commands)
        except Failure as failure:
            replies = [failure] * len(commands)
        self._reply(replies)
        if self._out_bytes > _WRITE_BYTES:
            self._flush()
            await self._drained.wait()

    async def _answer(self, spec: Spec | Failure, command: Command) -> None:
        """Answer a command that is not simply handed on with others."""
        transaction = self._client.transaction
        if isinstance(spec, Failure):
            if transaction is not None:
                transaction.is_bad = True
            self._reply([spec])
        elif transaction is not None and spec.name not in AT_ONCE:
            self._queue(spec, command)
        elif spec.is_handed_on:
            await self._wait(command)
        else:
            try:
                if spec.answer is not None:
                    answer = spec.answer(self._client, command)
                else:
                    assert spec.answer_later is not None
                    answer = await spec.answer_later(self._client, command)
            except Failure as failure:
                answer = failure
            self._reply([answer])

    def _queue(self, spec: Spec, command: Command) -> None:
        transaction = self._client.transaction
        assert transaction is not None
        if "no_multi" in spec.flags:
            transaction.is_bad = True
            self._reply([NOT_IN_TRANSACTION])
            return
        transaction.add(spec, command)
        self._reply([_QUEUED])
        if transaction.held_bytes > _SMALL_BYTES:
            self._account()
            self._holds_too_much()

    async def _wait(self, command: Command) -> None:
        """Run a command that may wait, as long as the client does."""
        self._flush()
        client, counts = self._client, self._front.counts
        if self._is_lost or self._front.is_stopping:
            return
        wait = asyncio.ensure_future(client.execute([command]))
        # Whatever is there already is answered without a wait.
        await asyncio.sleep(0)
        try:
            if not wait.done() and not self._is_lost and not self._has_ended:
                client.wait = wait
                counts.waiting += 1
                self._heed_input()
                await asyncio.wait((wait,))
                counts.waiting -= 1
        finally:
            client.wait = None
            wait.cancel()
        self._reply([await _end_of(wait, client)])

    # ---- answering ----

    def _reply(self, answers: Iterable[Answer]) -> None:
        client = self._client
        if client.reply_mode is not ReplyMode.ON:
            answers = list(answers)
            if client.reply_mode is ReplyMode.OFF:
                return
            if not isinstance(answers[0], NoReply):
                client.reply_mode = ReplyMode.ON
                del answers[0]
        answers = list(answers)
        self._front.counts.failures += sum(isinstance(answer, Failure) for answer in answers)
        encoded = encode(answers, is_resp3=client.is_resp3)
        self._out.append(encoded)
        self._out_bytes += len(encoded)

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if self._is_lost or self._closing_since or not data:
            return
        unread = self._transport.get_write_buffer_size() + len(data)
        if unread > self._front.limits.unread_bytes:
            self._front.counts.evicted += 1
            _log.warning("client %d is hung up on: it does not read", self._client.id)
            self.abort()
            return
        self._front.counts.bytes_written += len(data)
        self._transport.write(data)

    # ---- the end ----

    def check_time(self, now: float) -> None:
        """Close when the client takes too long with what it must do."""
        limits = self._front.limits
        if self._closing_since:
            if now - self._closing_since > _CLOSING_S:
                self.abort()
        elif self._unread_since:
            unread = self._transport.get_write_buffer_size()
            if unread < self._unread_bytes:
                self._unread_since = now
            elif now - self._unread_since > limits.connections.write_timeout_s:
                self.abort()
            self._unread_bytes = unread
        elif self._task is None:
            client = self._client
            is_stranger_late = client.caller is None and now - client.began_at > limits.stranger_s
            is_idle = now - client.active_at > limits.command_s
            if is_stranger_late or (is_idle and self._reader.is_amid_command):
                self.close()

    def close_with(self, failure: Failure) -> None:
        """Tell why, and close; commands under way finish first."""
        if self._task is None:
            self._reply([failure])
            self._flush()
            self.close()
        else:
            self._client.is_leaving = True
            self._client.end_wait(failure)

    def close_when_idle(self) -> None:
        if self._task is None:
            self.close()
        else:
            self._client.is_leaving = True

    def close(self) -> None:
        if not self._closing_since:
            self._closing_since = time.monotonic()
            self._transport.close()

    def abort(self) -> None:
        self._closing_since = self._closing_since or time.monotonic()
        self._transport.abort()


async def _end_of(wait: asyncio.Future[list[Reply]], client: Client) -> Reply:
    """Return the reply of a command that has waited; if it was ended, what was said then."""
    try:
        (reply,) = await wait
    except Failure as failure:
        return failure
    except asyncio.CancelledError:
        return client.end_of_wait
    return reply


def _address(name: object) -> tuple[str, str]:
    """Return the host, and the host with its port, of a socket's name."""
    if not isinstance(name, tuple):
        return "", ""
    host, port = name[:2]
    return host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

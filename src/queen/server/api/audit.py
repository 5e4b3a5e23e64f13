"""The audit trail: who changed what.

One line for every administrative act goes to the logger `queen.audit`, as JSON in which no
control character survives, and one row to a table that can only be added to. The line comes
first: if the database fails between the act and the row, it is still known.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from queen.errors import QueenError
from queen.server.auth.access import Caller
from queen.server.protocol.http import Request
from queen.service.broker import Broker
from queen.wire.answers import iso

_trail = logging.getLogger("queen.audit")
_log = logging.getLogger(__name__)

_NOBODY = "anonymous"
_MAX_TEXT = 1000


async def audit(broker: Broker, request: Request, act: str, target: str, **detail: Any) -> None:
    """Note that somebody has done something; `act` is like `queue.delete`."""
    line = audit_line(request, act, target, "done", detail)
    caller = request.caller
    try:
        await broker.audit_trail.write(
            caller.subject or _NOBODY,
            caller.credential,
            request.connection.address,
            act,
            line["target"],
            "done",
            json.dumps(detail, default=str),
        )
    except QueenError as error:
        _log.warning("the audit trail has this act in the log only: %s", error)


def audit_line(
    request: Request, act: str, target: str, outcome: str, detail: dict[str, Any]
) -> dict[str, Any]:
    """Write the line of an act, done or refused, and return it."""
    return line_about(request.caller, request.connection.address, act, target, outcome, detail)


def line_about(
    caller: Caller, address: str, act: str, target: str, outcome: str, detail: dict[str, Any]
) -> dict[str, Any]:
    """The same for an act that no request of HTTP asked for."""
    line = {
        "time": iso(datetime.now(UTC)),
        "actor": caller.subject or _NOBODY,
        "credential": caller.credential,
        "address": address,
        "act": act,
        "target": printable(target[:_MAX_TEXT]),
        "outcome": outcome,
        "detail": detail,
    }
    # Who writes the log as JSON has it as fields, not as JSON in a text.
    _trail.info("%s", json.dumps(line, default=str), extra={"audit": line})
    return line


def printable(text: str) -> str:
    r"""Return text with everything escaped that could pass for something else in a terminal.

    >>> printable("a\nb")
    'a\\nb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

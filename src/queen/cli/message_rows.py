"""Messages, as the commands that read them print them."""

from __future__ import annotations

from typing import Any

from queen.cli.output import Output
from queen.cli.terminal.printable import printable_json
from queen.client.payloads import encode_payload
from queen.client.queues.messages import Delivered
from queen.client.queues.replay import Stored
from queen.client.streams.messages import WindowMessage


def row_of(message: Delivered, *, with_lease: bool = False) -> dict[str, Any]:
    """Return a delivered message, in the names of the wire."""
    row: dict[str, Any] = {
        "queue": message.queue,
        "partition": message.partition,
        "partitionId": message.partition_id,
        "offset": message.offset,
        "transactionId": message.transaction_id,
        "traceId": message.trace_id,
        "createdAt": message.created_at,
        "retryCount": message.retry_count,
        "data": message.raw,
    }
    if message.headers:
        row["headers"] = message.headers
    return {**row, "leaseId": message.lease_id} if with_lease else row


def row_of_stored(message: Stored | WindowMessage, data: Any) -> dict[str, Any]:
    """Return a message of the log with its payload, in the names of the wire."""
    row = {
        "queue": message.queue,
        "partition": message.partition,
        "offset": message.offset,
        "transactionId": message.transaction_id,
        "traceId": message.trace_id,
        "createdAt": message.created_at,
        "data": data,
    }
    return {**row, "headers": message.headers} if message.headers else row


def payload_text(data: Any) -> str:
    """Return a payload on one line, for people."""
    return printable_json(encode_payload(data).decode())


def show(output: Output, row: dict[str, Any]) -> None:
    """Print one of a stream of messages: a line, whoever reads it."""
    if not output.is_table:
        output.lines([row])
        return
    at = row["createdAt"].astimezone().strftime("%H:%M:%S")
    output.text(f"{at} {row['partition']}:{row['offset']} {payload_text(row['data'])}")

"""Write docs/reference/stream-broker.md from the verbs of stream brokers and their records.

Signatures, docstrings and the comments of fields are taken from the code; a test fails when the
page is not up to date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from queen.service.entries.standalone import DurableStreamBroker
from queen.streambroker import (
    Capability,
    ConsumerGroupInfo,
    ConsumerInfo,
    DeadLetterOrigin,
    LocalStreamBroker,
    RedisStreamBroker,
    StreamBroker,
    StreamMessage,
    SyncStreamBroker,
)
from queen.streambroker.http_client import HttpStreamBroker
from tools.client_reference import of_class

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "stream-broker.md"

RECORDS: list[type] = [StreamMessage, ConsumerGroupInfo, ConsumerInfo, DeadLetterOrigin]
BACKENDS: list[type] = [LocalStreamBroker, RedisStreamBroker, HttpStreamBroker, DurableStreamBroker]
_FIELD = re.compile(r"^    (\w+)(?:: (.+?))?(?: = (.+))?$")

_HEAD = """# Stream broker

Made from the code by `make reference`; do not edit. New here? Begin with
[your first stream worker](../tutorial/first-stream-worker.md).

`from queen.streambroker import stream_broker_from_url, sync_stream_broker_from_url`. What is marked
*async* is awaited; `SyncStreamBroker` has the same verbs for programs without asyncio. Verbs and
fields answer to the names of the original too: `createGroup`, `deliveryCount`. The errors are those
of the [client](client.md#errors).
"""


def render() -> str:
    """Return the page."""
    parts = [_HEAD, "\n".join(of_class(StreamBroker))]
    for kind in RECORDS:
        parts.append("\n".join(_of_record(kind)))
    parts.append("\n".join(_of_capabilities()))
    for kind in BACKENDS:
        lines = list(of_class(kind, is_made_by_users=True))
        # The verbs are the same everywhere.
        end = next((at for at, line in enumerate(lines) if line.startswith("### ")), len(lines))
        made = inspect.cleandoc(vars(kind)["__init__"].__doc__ or "")
        parts.append("\n".join([*lines[:end], made, ""]))
    parts.append(f"## {SyncStreamBroker.__name__}\n\n{inspect.getdoc(SyncStreamBroker)}\n")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def _of_record(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n"
    yield "| field | type | what it is |"
    yield "| --- | --- | --- |"
    for name, annotation, _, comment in _fields(kind):
        yield f"| `{name}` | `{annotation}` | {comment} |".replace(" | None`", "` or none")
    yield ""


def _of_capabilities() -> Iterator[str]:
    yield f"## {Capability.__name__}\n\n{inspect.getdoc(Capability)} Ask `broker.capabilities`.\n"
    yield "| capability | what it means |"
    yield "| --- | --- |"
    for name, _, _, comment in _fields(Capability):
        yield f"| `{name}` | {comment} |"
    yield ""


def _fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields of a class: name, type, value, and the comment above it."""
    comment: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.startswith("    # "):
            comment.append(line.removeprefix("    # "))
            continue
        if field := _FIELD.match(line):
            name, annotation, value = field.groups()
            yield name, annotation or "", value or "", " ".join(comment)
        comment = []


def main() -> None:
    PAGE.write_text(render())


if __name__ == "__main__":
    main()

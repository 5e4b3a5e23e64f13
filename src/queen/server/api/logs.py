"""Log lines that say one thing each.

Names, paths and errors come from strangers. A line break or a terminal sequence among them
must not look like another line, or do something to the terminal of whoever reads it.
"""

from __future__ import annotations

import logging

from queen.server.api.audit import printable


class OneLine(logging.Formatter):
    """Escapes what is not printable; a traceback is set off, line by line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 (the base class's name)
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join("  | " + printable(line) for line in text.splitlines())


def configure_logs(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)

"""Log lines that say one thing each.

Names, paths and errors come from strangers. A line break or a terminal sequence among them
must not look like another line, or do something to the terminal of whoever reads it.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from queen.server.api.audit import printable
from queen.wire.answers import iso


class OneLine(logging.Formatter):
    """Escapes what is not printable; a traceback is set off, line by line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the base class's name)
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 (the base class's name)
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join("  | " + printable(line) for line in text.splitlines())


class JsonLine(logging.Formatter):
    """One JSON object on each line, for programs that collect logs."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": iso(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        act = getattr(record, "audit", None)
        if act is not None:
            line |= {"message": f"{act['act']} {act['target']} {act['outcome']}", "audit": act}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False, default=str)
        # Somebody may look at the log with a terminal.
        return text if text.isprintable() else json.dumps(line, default=str)


def configure_logs(level: str = "info", style: str = "text") -> None:
    """Write what is logged to standard error: as text for people, or as JSON."""
    handler = logging.StreamHandler()
    text = OneLine("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonLine() if style == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)

"""Text that can do nothing to a terminal.

Names, payloads and errors come from strangers. Controls of the terminal and of the direction of
writing are shown as JSON would write them, so that JSON in which they are escaped stays the same
JSON. What goes to a file or a pipe is not touched.
"""

from __future__ import annotations

import logging
import sys


def printable(text: str) -> str:
    r"""Return text in which nothing can pass for a line or for something of the terminal.

    >>> print(printable("a\x1b[31m\nb"))
    a\u001b[31m\u000ab
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def printable_json(text: str) -> str:
    r"""Return the same JSON, on one line.

    >>> print(printable_json('{"a":\n"\x9b"}'))
    {"a": "\u009b"}
    """
    # Between its values only: in a text they are escaped already.
    for blank in "\t\r\n":
        text = text.replace(blank, " ")
    return printable(text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


class PrintableFormatter(logging.Formatter):
    """Log lines that do nothing to the terminal they are on; tracebacks keep their lines."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return "\n".join(map(printable, text.split("\n"))) if sys.stderr.isatty() else text


def configure_terminal_log(template: str, level: str) -> None:
    """Log to standard error, for whoever sits at the terminal."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(template))
    logging.basicConfig(handlers=[handler], level=level.upper())

"""Commands as a person types them: words in a line, quoted where they hold blanks."""

from __future__ import annotations

_BLANKS = b" \t\r\n\v\f\0"
_ESCAPES = {b"n"[0]: b"\n", b"r"[0]: b"\r", b"t"[0]: b"\t", b"b"[0]: b"\b", b"a"[0]: b"\a"}
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DOUBLE, _SINGLE, _BACKSLASH, _X = b"\"'\\x"


def split_words(line: bytes) -> list[bytes] | None:
    r"""Return the words of a line; None when a quote is not closed, or not followed by a blank.

    >>> split_words(b"xadd s * f 'two words'")
    [b'xadd', b's', b'*', b'f', b'two words']
    >>> split_words(b'echo "\\x41\\n"')
    [b'echo', b'A\n']
    """
    if b'"' not in line and b"'" not in line and b"\0" not in line:
        return line.split()
    words: list[bytes] = []
    at = 0
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        if at == len(line):
            return words
        word, at = _read_word(line, at)
        if word is None:
            return None
        words.append(word)


def _read_word(line: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the word that begins somewhere, and where it ends. A quote may begin inside it."""
    word = bytearray()
    while at < len(line) and line[at] not in _BLANKS:
        if line[at] not in (_DOUBLE, _SINGLE):
            word.append(line[at])
            at += 1
            continue
        read = _read_double if line[at] == _DOUBLE else _read_single
        at = read(line, at + 1, word)
        if not at:
            return None, 0
        # What is quoted ends its word.
        return (bytes(word), at) if at == len(line) or line[at] in _BLANKS else (None, 0)
    return bytes(word), at


def _read_double(line: bytes, at: int, word: bytearray) -> int:
    """Add what is quoted to a word; return where it ends, 0 when it does not."""
    while at < len(line):
        char = line[at]
        if char == _DOUBLE:
            return at + 1
        if char != _BACKSLASH or at + 1 == len(line):
            word.append(char)
            at += 1
        elif line[at + 1] == _X and len(line) > at + 3 and _HEX.issuperset(line[at + 2 : at + 4]):
            word.append(int(line[at + 2 : at + 4], 16))
            at += 4
        else:
            word += _ESCAPES.get(line[at + 1], line[at + 1 : at + 2])
            at += 2
    return 0


def _read_single(line: bytes, at: int, word: bytearray) -> int:
    while at < len(line):
        if line[at : at + 2] == b"\\'":
            word.append(_SINGLE)
            at += 2
        elif line[at] == _SINGLE:
            return at + 1
        else:
            word.append(line[at])
            at += 1
    return 0

"""From bytes to commands: the fast half and the slow half agree, and neither trusts a length."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen.server.resp.command_reader import BadProtocol, Command, CommandReader
from queen.server.resp.inline import split_words
from tests.resp.wire import packed

_LIMIT = 1024 * 1024
_words = st.binary(max_size=12) | st.sampled_from([b"\r\n", b"a\r\nb", b"$3\r\nabc\r\n", b"*1\r\n"])
_commands = st.lists(st.lists(_words, min_size=1, max_size=6), max_size=12)


def _read(reader: CommandReader, data: bytes) -> list[Command]:
    reader.feed(data)
    commands: list[Command] = []
    while reader.is_worth_reading:
        commands += reader.take()
    return commands


def _reader(*, is_stranger: bool = False) -> CommandReader:
    reader = CommandReader(_LIMIT)
    reader.is_stranger = is_stranger
    return reader


@given(_commands, st.lists(st.integers(0, 400), max_size=5), st.booleans())
def test_commands_are_read_however_they_are_torn(
    commands: list[Command], cuts: list[int], is_stranger: bool
) -> None:
    data = b"".join(packed(*command) for command in commands)
    reader = _reader(is_stranger=is_stranger)
    read: list[Command] = []
    ends = sorted(min(cut, len(data)) for cut in cuts)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        read += _read(reader, data[start:end])
    assert read == commands
    assert not reader.is_amid_command and reader.held_bytes == 0


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_commands_or_refused(data: bytes, is_stranger: bool) -> None:
    reader = _reader(is_stranger=is_stranger)
    try:
        commands = _read(reader, data)
    except BadProtocol:
        return
    assert all(command and all(type(word) is bytes for word in command) for command in commands)
    assert reader.held_bytes <= len(data) + 48 * 100


@given(st.binary(max_size=40))
def test_the_halves_agree_about_any_beginning(data: bytes) -> None:
    """A stranger is read by the slow half only."""
    session = packed("XADD", "s", "*", "f", b"v\r\nw") + packed("PING") + data
    outcomes = []
    for is_stranger in (True, False):
        reader = _reader(is_stranger=is_stranger)
        reader.feed(session)
        commands: list[Command] = []
        error = ""
        try:
            while reader.is_worth_reading:
                commands += reader.take()
        except BadProtocol as refused:
            error = str(refused).removeprefix("unauthenticated ")
        outcomes.append((commands, error.replace("invalid ", "")))
    assert outcomes[0] == outcomes[1]


def test_what_comes_before_an_error_is_run_first() -> None:
    reader = _reader()
    reader.feed(packed("PING") + packed("ECHO", "a") + b"*1\r\n$x\r\n")
    assert reader.take() == [[b"PING"], [b"ECHO", b"a"]]
    for _ in range(2):
        with pytest.raises(BadProtocol, match="invalid bulk length"):
            reader.take()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"*1048577\r\n", "invalid multibulk length"),
        (b"*2147483647\r\n", "invalid multibulk length"),
        (b"*" + b"9" * 100, "too big mbulk count string"),
        (b"*1\r\n$" + b"9" * 100, "too big bulk count string"),
        (b"*1\r\n$1048577\r\n", "invalid bulk length"),
        (b"*1\r\n$3\r\nabcd\r\n", "expected a line end"),
        (b"*1\r\n\r\n", "expected"),
        (b"a" * 70_000, "too big inline request"),
        (b"GET / HTTP/1.1\r\n", "HTTP is not spoken here"),
        (b"POST /x HTTP/1.0\r\n", "HTTP is not spoken here"),
    ],
)
def test_what_cannot_be_a_command_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(BadProtocol, match=complaint):
        _read(_reader(), data)


def test_a_short_line_is_read_after_a_torn_command() -> None:
    reader = _reader()
    assert _read(reader, b"*1\r\n$4\r") == []
    assert _read(reader, b"\nPING\r\n") == [[b"PING"]]
    assert _read(reader, b"*1\r") == []
    assert _read(reader, b"\n$4\r\nPING\r\n") == [[b"PING"]]
    assert _read(reader, b"A\n") == [[b"A"]]


def test_a_stranger_may_send_little() -> None:
    for data in (b"*11\r\n", b"*2\r\n$4\r\nAUTH\r\n$16385\r\n"):
        with pytest.raises(BadProtocol, match="unauthenticated"):
            _read(_reader(is_stranger=True), data)
        assert _read(_reader(), data) == []


def test_a_stranger_is_read_command_by_command() -> None:
    """Who it is after the first decides what the second may be."""
    reader = _reader(is_stranger=True)
    many = [b"XADD", b"s", b"*", *[b"f", b"v"] * 10]
    reader.feed(packed("AUTH", "token") + packed(*many))
    assert reader.take() == [[b"AUTH", b"token"]]
    reader.is_stranger = False
    assert reader.take() == [many]


def test_many_small_arguments_count_for_what_they_take() -> None:
    count = 100_000
    with pytest.raises(BadProtocol, match="invalid bulk length"):
        _read(_reader(), b"*%d\r\n" % count + b"$2\r\nab\r\n" * count)


@pytest.mark.parametrize(
    "data",
    [
        b"*1048576\r\n" * 1000,
        b"*1000000\r\n$1000000\r\n",
        b"*1\r\n" * 5000,
        b"*1\r\n$1000000\r\n" + b"x" * 1000,
        b"*1000\r\n" + b"$0\r\n\r\n" * 999,
        b"\r\n" * 10_000,
        b"*0\r\n" * 15_000,
        b"*-1\r\n" * 4_000,
        b"''" * 10_000 + b"\r\n",
    ],
    ids=["arrays", "promise", "nested", "half", "empty", "lines", "nothing", "minus", "quotes"],
)
def test_nothing_takes_more_memory_than_it_is_long(data: bytes) -> None:
    reader = _reader()
    tracemalloc.start()
    try:
        _read(reader, data)
    except BadProtocol:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 3 * 1024 * 1024


def test_a_large_string_is_not_read_again_with_every_part_of_it() -> None:
    reader = CommandReader(64 * _LIMIT)
    reader.is_stranger = False
    data = packed("ECHO", b"x" * 32 * _LIMIT)
    reader.feed(data[:100])
    assert reader.take() == []
    looks = 0
    for start in range(100, len(data), 65536):
        reader.feed(data[start : start + 65536])
        looks += reader.is_worth_reading
    assert looks == 1
    assert reader.take() == [[b"ECHO", b"x" * 32 * _LIMIT]]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  a   b ", [b"a", b"b"]),
        (b'a "b c"', [b"a", b"b c"]),
        (b"a 'b \\' c'", [b"a", b"b ' c"]),
        (b'"\\x00\\xff\\n\\r\\t\\a\\b\\\\\\""', [b'\x00\xff\n\r\t\a\b\\"']),
        (b'"\\x0g"', [b"x0g"]),
        (b'""', [b""]),
        (b'"a"b', None),
        (b"'a'b", None),
        (b'"a', None),
        (b"'a", None),
        (b'"a\\', None),
        (b"a\0b", [b"a", b"b"]),
    ],
)
def test_words_of_a_line(line: bytes, words: list[bytes] | None) -> None:
    assert split_words(line) == words

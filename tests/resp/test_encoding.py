"""Replies as bytes, in both protocols."""

from __future__ import annotations

import pytest

from queen.server.resp.encoding import Answer, Members, NoReply, Verbatim, encode
from queen.streambroker.replies import NO_ARRAY, OK, ByStream, Failure, Pairs


@pytest.mark.parametrize(
    ("reply", "resp2", "resp3"),
    [
        (None, b"$-1\r\n", b"_\r\n"),
        (NO_ARRAY, b"*-1\r\n", b"_\r\n"),
        (-7, b":-7\r\n", b":-7\r\n"),
        (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
        (b"a\r\n", b"$3\r\na\r\n\r\n", b"$3\r\na\r\n\r\n"),
        ([], b"*0\r\n", b"*0\r\n"),
        ([b"a", [1, None]], b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n", None),
        (OK, b"+OK\r\n", b"+OK\r\n"),
        (Failure("ERR no"), b"-ERR no\r\n", b"-ERR no\r\n"),
        (Failure("ERR a\r\n+OK"), b"-ERR a  +OK\r\n", b"-ERR a  +OK\r\n"),
        (Failure("ERR \udcff"), b"-ERR \xff\r\n", b"-ERR \xff\r\n"),
        (Pairs([b"a", 1]), b"*2\r\n$1\r\na\r\n:1\r\n", b"%1\r\n$1\r\na\r\n:1\r\n"),
        (
            ByStream([(b"s", [])]),
            b"*1\r\n*2\r\n$1\r\ns\r\n*0\r\n",
            b"%1\r\n$1\r\ns\r\n*0\r\n",
        ),
        (Verbatim(b"hi"), b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n"),
        (Members([1, 2]), b"*2\r\n:1\r\n:2\r\n", b"~2\r\n:1\r\n:2\r\n"),
        (NoReply(), b"", b""),
    ],
)
def test_replies(reply: Answer, resp2: bytes, resp3: bytes | None) -> None:
    assert encode([reply], is_resp3=False) == resp2
    expected = resp2.replace(b"$-1", b"_") if resp3 is None else resp3
    assert encode([reply], is_resp3=True) == expected
    assert encode([reply, 1], is_resp3=False) == resp2 + b":1\r\n"


def test_what_is_no_reply_is_a_mistake() -> None:
    with pytest.raises(TypeError):
        encode([object()], is_resp3=False)  # type: ignore[list-item]

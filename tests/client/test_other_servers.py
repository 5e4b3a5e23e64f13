"""Answers that no Queen sends: of the original broker, of a proxy, of a broken network."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime

import pytest

from queen import Queen, errors
from queen.errors import QueenError, Unreachable
from tests.client.fake import CLOSE, OK, Fake, answer


async def ask(
    *answers: bytes | None, retry_s: float = 0.0, timeout_s: float = 5.0, closes: bool = False
) -> tuple[object, Fake]:
    fake = Fake(answers, closes=closes)
    async with fake.running(), Queen(fake.url, retry_s=retry_s, timeout_s=timeout_s) as queen:
        return await queen.request("GET", "/any"), fake


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequest),
        (401, errors.Unauthenticated),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (408, errors.RequestTimeout),
        (409, errors.Conflict),
        (413, errors.PayloadTooLarge),
        (415, errors.UnsupportedMedia),
        (418, errors.QueenError),
        (429, errors.Overloaded),
        (431, errors.HeadersTooLarge),
        (500, errors.QueenError),
        (502, errors.Unreachable),
        (503, errors.Unavailable),
        (504, errors.Unreachable),
    ],
)
@pytest.mark.parametrize("body", [b'{"error":"why"}', b"<html>why</html>", b"[1]", b""])
async def test_a_status_without_a_code(status: int, kind: type[QueenError], body: bytes) -> None:
    with pytest.raises(QueenError) as caught:
        await ask(answer(f"{status} Nope", body))
    assert type(caught.value) is kind
    assert caught.value.message == ("why" if b"error" in body else f"the server answered {status}")


def _leaves(root: type[QueenError]) -> list[type[QueenError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _leaves(child))]


@pytest.mark.parametrize("kind", _leaves(QueenError))
async def test_a_code_is_the_error_that_the_server_raised(kind: type[QueenError]) -> None:
    body = b'{"error":"why","code":"%b","retryable":false,"more":[1]}' % kind.code.encode()
    with pytest.raises(QueenError) as caught:
        await ask(answer("500 Oops", body), retry_s=5)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.details["more"]) == ("why", [1])


@pytest.mark.parametrize(
    "failure",
    [
        answer("502 Bad Gateway", b"<html>no</html>"),
        answer("503 Down", b"", "connection: close"),
        answer("429 Slow down", b'{"error":"x"}'),
        b"HTTP/1.1 502 Bad Gateway\r\n\r\n<html>until the end",
        CLOSE,
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{"n',
        b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\n{"n"',
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
)
async def test_what_may_pass_is_tried_again(failure: bytes) -> None:
    fake = Fake([failure, OK], closes=True)
    async with fake.running(), Queen(fake.url, retry_s=5, timeout_s=2) as queen:
        assert await queen.request("GET", "/any") == {"n": 1}
        assert len(fake.requests) == 2


async def test_what_will_not_pass_is_not_tried_again() -> None:
    fake = Fake([answer("400 Bad", b'{"error":"x"}'), OK])
    async with fake.running(), Queen(fake.url, retry_s=5) as queen:
        with pytest.raises(errors.BadRequest):
            await queen.request("POST", "/any", {})
        assert len(fake.requests) == 1


@pytest.mark.parametrize(
    "text",
    [
        b'HTTP/1.1 200 \r\nTransfer-Encoding: Chunked\r\n\r\n3;x\r\n{"n\r\n4\r\n":1}\r\n0\r\n\r\n',
        b'HTTP/1.1 103 Hi\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length:7\r\n\r\n{"n":1}',
        b'HTTP/1.0 200 OK\r\ncontent-length: 7\r\n\r\n{"n":1}',
    ],
)
async def test_ways_to_send_a_body(text: bytes) -> None:
    told, _ = await ask(text)
    assert told == {"n": 1}


async def test_a_body_until_the_connection_is_closed() -> None:
    told, _ = await ask(b'HTTP/1.1 200 OK\r\n\r\n{"n":1}', closes=True)
    assert told == {"n": 1}


async def test_a_page_instead_of_an_answer() -> None:
    with pytest.raises(Unreachable, match="not one of Queen's"):
        await ask(answer("200 OK", b"<html>Welcome</html>"))


async def test_connections_are_kept_unless_the_server_closes_them() -> None:
    last = answer("200 OK", b"1", "Connection: Close")
    fake = Fake([OK, OK, last, OK, b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n1", OK])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        for _ in range(6):
            await queen.request("GET", "/any")
        assert fake.connections == 3


async def test_a_connection_closed_while_idle_is_no_failure() -> None:
    fake = Fake([OK, OK, OK], closes=True)
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        for _ in range(3):
            assert await queen.request("GET", "/any") == {"n": 1}


async def test_an_answer_that_nobody_asked_for_is_nobodys() -> None:
    fake = Fake([OK + answer("408 Idle", b""), OK])
    async with fake.running(), Queen(fake.url, retry_s=0) as queen:
        assert await queen.request("GET", "/any") == {"n": 1}
        assert await queen.request("GET", "/any") == {"n": 1}


async def test_a_server_that_never_answers() -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="did not answer"):
        await ask(None, timeout_s=0.3)
    assert time.monotonic() - began < 20


async def test_a_stream_that_stalls() -> None:
    started = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    for answers in ([None], [started]):
        fake = Fake([*answers, CLOSE])
        async with fake.running(), Queen(fake.url, retry_s=0, timeout_s=0.3) as queen:
            with pytest.raises(Unreachable):
                _ = [one async for one in queen.queue("q").replay()]


async def test_a_stream_that_breaks() -> None:
    started = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"
    fake = Fake([started, CLOSE], closes=True)
    async with fake.running(), Queen(fake.url, retry_s=0, timeout_s=5) as queen:
        with pytest.raises(Unreachable, match="in the middle"):
            _ = [one async for one in queen.queue("q").replay()]


async def test_a_stream_goes_to_the_server_that_answers() -> None:
    fake = Fake([answer("200 OK", b"")] * 16)
    async with fake.running(), Queen(["http://127.0.0.1:9", fake.url], retry_s=0) as queen:
        for n in range(8):
            assert [one async for one in queen.queue(f"q{n}").replay()] == []


async def test_nobody_is_there() -> None:
    began = time.monotonic()
    async with Queen("http://127.0.0.1:9", retry_s=0.5) as queen:
        with pytest.raises(Unreachable, match="cannot connect to http://127"):
            await queen.queue("q").push(1)
    assert time.monotonic() - began < 20


async def test_the_next_server_is_asked_at_once_and_the_dead_one_left_alone() -> None:
    fake = Fake([OK] * 20)
    dead = Fake([CLOSE] * 20)
    async with fake.running(), dead.running():
        async with Queen([dead.url, fake.url], retry_s=0) as queen:
            for n in range(20):
                await queen.cluster.call("GET", "/any", key=str(n))
        assert len(dead.requests) == 1


async def test_a_key_stays_with_its_server() -> None:
    one, two = Fake([OK] * 40), Fake([OK] * 40)
    async with one.running(), two.running():
        for order in ([one.url, two.url], [two.url, one.url]):
            async with Queen(order) as queen:
                for n in range(20):
                    await queen.cluster.call("GET", f"/{n}", key=str(n))
    asked = [{re.split(rb" ", text)[1] for text in fake.requests} for fake in (one, two)]
    assert not asked[0] & asked[1]
    assert all(asked)


async def test_a_push_is_repeated_with_the_same_ids() -> None:
    stored = answer("201 Created", b'[{"status":"queued","transaction_id":"x"}]')
    fake = Fake([CLOSE, answer("503 Down", b"{}"), stored])
    async with fake.running(), Queen(fake.url) as queen:
        await queen.queue("q").push({"n": 1})
    bodies = {text.partition(b"\r\n\r\n")[2] for text in fake.requests}
    assert len(fake.requests) == 3 and len(bodies) == 1


async def test_a_broker_without_frames_gets_json() -> None:
    health = answer("200 OK", b'{"status":"healthy"}')
    results = b",".join([b'{"status":"duplicate","transaction_id":"x"}'] * 300)
    stored = answer("201 Created", b"[" + results + b"]")
    fake = Fake([stored, health, stored])
    async with fake.running(), Queen(fake.url) as queen:
        pushed = await queen.queue("q").push(list(range(300)))
        assert pushed[0].is_duplicate
        await queen.queue("q").buffer().push(1)
        await queen.flush()
    assert b"application/json" in fake.requests[0] and b"application/json" in fake.requests[2]


async def test_messages_of_the_original_broker() -> None:
    body = (
        b'{"success":true,"queue":"q","leaseId":"","messages":[{"id":"a","transactionId":"t",'
        b'"partitionId":"p","partition":"Default","data":null,"leaseId":"","consumerGroup":null,'
        b'"createdAt":"2026-01-01T00:00:00.000Z","traceId":null,"producerSub":null}]}'
    )
    extended = answer("200 OK", b'{"leaseId":"x","extended":true,"seconds":60}')
    fake = Fake([answer("200 OK", body), answer("204 No Content", b""), extended])
    async with fake.running(), Queen(fake.url) as queen:
        (one,) = await queen.queue("q").pop()
        assert (one.data, one.attempt, one.lease_id, one.queue) == (None, 1, "", "q")
        assert await queen.queue("q").pop() == []
        assert await queen.renew("x", 60) > datetime.now(UTC)


async def test_a_cancelled_request_hangs_up() -> None:
    fake = Fake([None])
    async with fake.running(), Queen(fake.url) as queen:
        popping = asyncio.create_task(queen.queue("q").pop())
        await asyncio.wait_for(fake.asked.wait(), 5)
        popping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await popping
        await asyncio.wait_for(fake.hung_up.wait(), 5)


async def test_the_token_is_sent_and_never_shown() -> None:
    secret = "s3cret" * 4
    fake = Fake([OK, answer("401 No", b'{"error":"x"}')])
    async with fake.running(), Queen(fake.url, token=secret, retry_s=0) as queen:
        await queen.request("GET", "/any")
        assert f"authorization: Bearer {secret}".encode() in fake.requests[0]
        with pytest.raises(errors.Unauthenticated) as caught:
            await queen.request("GET", "/any")
        assert secret not in repr(caught.value) + repr(queen)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "://", ""])
def test_urls_that_are_none(url: str) -> None:
    if url:
        with pytest.raises(ValueError, match="not the URL"):
            Queen(url)
    with pytest.raises(ValueError, match="not the URL"):
        Queen([url])

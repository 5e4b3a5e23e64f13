from __future__ import annotations

from tests.api import Api


def test_a_push_is_visible_to_the_very_next_pop(api: Api, queue: str) -> None:
    (transaction_id,) = api.push_many(queue, 1)
    (message,) = api.messages(queue, batch=10)
    assert message["transactionId"] == transaction_id
    assert message["data"] == {"n": 0}


def test_two_servers_dedup(api: Api, other_api: Api, queue: str) -> None:
    for n in range(20):
        one, two = (api, other_api) if n % 2 else (other_api, api)
        item = {"queue": queue, "payload": n, "transactionId": f"t{n}"}
        first = one.push(item).json[0]
        assert first["status"] == "queued", first
        again = two.push(item).json[0]
        assert again["status"] == "duplicate"
        assert again["message_id"] == first["message_id"]


def test_forever(api: Api, queue: str) -> None:
    api.configure(queue, dedup="forever")
    item = {"queue": queue, "payload": 1, "transactionId": "t"}
    first = api.push(item).json[0]
    again = api.push(item, {"queue": queue, "payload": 2, "transactionId": "u"}).json
    assert [one["status"] for one in again] == ["duplicate", "queued"]
    assert again[0]["message_id"] == first["message_id"]

"""Payloads that are JSON already are sent as they are."""

from __future__ import annotations

import msgspec

from queen.client.payloads import encoded


def test_raw_json_with_a_null_in_it_is_a_payload() -> None:
    assert encoded(msgspec.Raw(b'{"a": null}')) == b'{"a": null}'
    assert encoded({"kept": msgspec.Raw(b"[null]")}) == b'{"kept":[null]}'

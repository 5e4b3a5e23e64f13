"""Payloads that are JSON already are sent as they are."""

from __future__ import annotations

import msgspec

from queen.client.payloads import encode_payload


def test_raw_json_with_a_null_in_it_is_a_payload() -> None:
    assert encode_payload(msgspec.Raw(b'{"a": null}')) == b'{"a": null}'
    assert encode_payload({"kept": msgspec.Raw(b"[null]")}) == b'{"kept":[null]}'

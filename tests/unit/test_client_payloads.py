"""Payloads that are JSON already are sent as they are; what JSON cannot say is refused."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec
import pytest

from queen.client.payloads import decode_payload, encode_payload
from queen.client.queues.messages import Message


def test_raw_json_with_a_null_in_it_is_a_payload() -> None:
    assert encode_payload(msgspec.Raw(b'{"a": null}')) == b'{"a": null}'
    assert encode_payload({"kept": msgspec.Raw(b"[null]")}) == b'{"kept":[null]}'


@pytest.mark.parametrize("delay", [math.inf, math.nan, -1, timedelta(seconds=-1)])
def test_a_delay_that_json_cannot_say_is_refused(delay: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delay must be a finite number"):
        Message(1, delay=delay)
    assert Message(1, delay=timedelta(minutes=1)).delay == 60


def test_a_number_that_no_float_holds_is_read_as_python_reads_it() -> None:
    text = b'{"large": 1e999, "whole": 1%s}' % (b"0" * 400)
    assert decode_payload(text, None) == {"large": math.inf, "whole": 10**400}
    with pytest.raises(msgspec.DecodeError):
        decode_payload(b"{", None)

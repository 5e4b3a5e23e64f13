from __future__ import annotations

import pytest

from queen.core.options import QueueOptions, parse_options, reason_against_options


def test_nothing_means_the_defaults() -> None:
    assert parse_options({}) == QueueOptions()
    assert parse_options({"leaseTime": None}).lease_time == 300


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"leaseTme": 5}, "leaseTme"),
        ({"leaseTime": -1}, "leaseTime"),
        ({"leaseTime": 0}, "leaseTime"),
        ({"retryLimit": 10**9}, "retryLimit"),
        ({"dedupWindowSeconds": 0}, "dedupWindowSeconds"),
        ({"leaseTime": 0}, "must be between 1 and 315360000, not 0"),
        ({"leaseTime": "x"}, """must be a whole number between 1 and 315360000, not "x\""""),
        ({"ttl": True}, "'ttl' must be a whole number"),
        ({"dedup": "sometimes"}, """'dedup' must be one of forever, off, window, not "some"""),
        ({"deadLetterQueue": 1}, "'deadLetterQueue' must be true or false, not 1"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, object], reason: str) -> None:
    assert reason in (reason_against_options(options) or "")

"""The rules of an ack, on plain values."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from queen.core.cursor import (
    AckResult,
    AckStatus,
    Cursor,
    acked_up_to,
    bits_from_bytes,
    bits_to_bytes,
    set_aside,
    settle,
)

LEASE = uuid.UUID(int=7)
OTHER = uuid.UUID(int=8)


def leased(start: int = 10, end: int = 15) -> Cursor:
    return Cursor(committed=start, batch_end=end, lease_id=LEASE, live=True, attempts=1)


def test_acking_everything_moves_the_cursor_and_ends_the_lease() -> None:
    after = settle(leased(), LEASE, dict.fromkeys(range(10, 15), AckStatus.DONE), 3)
    assert after.cursor.committed == 15
    assert after.cursor.lease_id is None
    assert after.cursor.attempts == 0
    assert acked_up_to(after.cursor.receipts, LEASE) == 15


def test_acks_out_of_order_wait_for_the_gap() -> None:
    after = settle(leased(), LEASE, {12: AckStatus.DONE, 13: AckStatus.DONE}, 3)
    assert after.cursor.committed == 10
    assert after.cursor.lease_id == LEASE
    after = settle(after.cursor, LEASE, {10: AckStatus.DONE, 11: AckStatus.DONE}, 3)
    assert after.cursor.committed == 14


def test_a_lapsed_lease_is_refused() -> None:
    cursor = leased()
    cursor.live = False
    after = settle(cursor, LEASE, {10: AckStatus.DONE}, 3)
    assert after.results == {10: AckResult.LOST}
    assert after.cursor is cursor


def test_another_holder_is_refused() -> None:
    after = settle(leased(), OTHER, {10: AckStatus.DONE}, 3)
    assert after.results == {10: AckResult.LOST}


def test_a_repeated_ack_is_told_that_it_succeeded() -> None:
    first = settle(leased(), LEASE, dict.fromkeys(range(10, 15), AckStatus.DONE), 3)
    again = settle(first.cursor, LEASE, {11: AckStatus.DONE}, 3)
    assert again.results == {11: AckResult.ALREADY}


def test_a_message_outside_the_lease_is_refused() -> None:
    after = settle(leased(), LEASE, {15: AckStatus.DONE}, 3)
    assert after.results == {15: AckResult.LOST}


def test_a_failed_message_keeps_its_place_and_what_is_done_stays_done() -> None:
    statuses = dict.fromkeys(range(10, 15), AckStatus.DONE) | {11: AckStatus.FAILED}
    after = settle(leased(), LEASE, statuses, 3)
    assert after.results[11] is AckResult.RETRY
    assert after.cursor.committed == 11
    assert after.cursor.lease_id is None
    assert after.cursor.acked == 0b1110
    assert after.cursor.attempts == 1


def test_a_message_that_fails_too_often_is_dead_and_counts_as_done() -> None:
    cursor = leased(10, 11)
    cursor.attempts = 3
    after = settle(cursor, LEASE, {10: AckStatus.FAILED}, 2)
    assert after.dead == {10: 3}
    assert after.cursor.committed == 11


def test_retry_never_kills() -> None:
    cursor = leased(10, 11)
    cursor.attempts = 99
    assert settle(cursor, LEASE, {10: AckStatus.RETRY}, 2).results == {10: AckResult.RETRY}


def test_an_ack_without_a_lease_id_means_the_current_lease() -> None:
    assert settle(leased(), None, {10: AckStatus.DONE}, 3).results == {10: AckResult.DONE}
    free = Cursor(committed=10)
    assert settle(free, None, {10: AckStatus.DONE}, 3).results == {10: AckResult.LOST}


@given(st.permutations(range(20)), st.integers(1, 7))
def test_any_order_of_acks_ends_at_the_same_place(order: list[int], size: int) -> None:
    cursor = leased(0, 20)
    for start in range(0, 20, size):
        statuses = dict.fromkeys(order[start : start + size], AckStatus.DONE)
        after = settle(cursor, LEASE, statuses, 3)
        assert set(after.results.values()) == {AckResult.DONE}
        cursor = after.cursor
    assert (cursor.committed, cursor.acked, cursor.lease_id) == (20, 0, None)


@given(st.integers(0, 2**200))
def test_bits_survive_storage(bits: int) -> None:
    assert bits_from_bytes(bits_to_bytes(bits)) == bits


def test_what_is_given_back_without_fault_has_not_been_tried() -> None:
    after = settle(leased(end=12), LEASE, {11: AckStatus.RETRY}, 3)
    after = settle(after.cursor, LEASE, {10: AckStatus.DONE}, 3)
    assert (after.cursor.committed, after.cursor.lease_id) == (11, None)
    assert after.cursor.attempts == 0
    assert after.given_back == {11: 0}


def test_what_is_next_has_been_tried_as_often_as_it_has_failed_and_now() -> None:
    cursor = leased(end=12)
    cursor.failures = {11: 2}
    undecided = settle(cursor, LEASE, {10: AckStatus.DONE}, 9).cursor
    assert (undecided.committed, undecided.attempts) == (11, 3)
    decided = settle(undecided, LEASE, {11: AckStatus.FAILED}, 9).cursor
    assert (decided.failures, decided.attempts) == ({11: 3}, 3)


def test_only_a_lease_with_failures_makes_the_rest_wait() -> None:
    statuses = {10: AckStatus.RETRY, 11: AckStatus.FAILED}
    failed = settle(leased(end=12), LEASE, statuses, 3)
    assert failed.given_back == {10: 0, 11: 1}
    again = Cursor(10, 10, 11, OTHER, True, 1, failures=failed.cursor.failures)
    assert not settle(again, OTHER, {10: AckStatus.DONE}, 3).given_back


def test_a_message_set_aside_under_a_lease_leaves_its_deliveries_behind() -> None:
    cursor = leased()
    cursor.attempts = 3
    after = set_aside(cursor, 10)
    assert (after.committed, after.attempts, after.lease_id) == (11, 1, LEASE)


def test_setting_another_message_aside_forgives_the_first_one_nothing() -> None:
    lapsed = leased()
    lapsed.attempts, lapsed.live = 3, False
    after = set_aside(lapsed, 12)
    assert (after.committed, after.attempts, after.batch_end) == (10, 3, 15)

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from queen.core.ids import message_id, message_prefix, parse_partition, partition_uuid

_partitions = st.integers(1, 2**60 - 1)


@given(_partitions, st.integers(0, 2**60 - 1))
def test_an_id_is_a_uuid_and_names_its_partition(partition: int, offset: int) -> None:
    text = message_id(partition, offset)
    assert str(uuid.UUID(text)) == text
    assert uuid.UUID(text).version == 8
    assert parse_partition(text) == partition


@given(_partitions, st.integers(0, 2**48 - 1))
def test_the_prefix_is_shared(partition: int, offset: int) -> None:
    assert message_id(partition, offset) == f"{message_prefix(partition)}{offset:012x}"


@given(_partitions)
def test_a_partition_is_not_taken_for_a_message(partition: int) -> None:
    text = partition_uuid(partition)
    assert parse_partition(text) == partition
    assert text != message_id(partition, 0)


def test_other_text_is_no_partition() -> None:
    for text in ("", "x", str(uuid.uuid4()), "00000000-0000-7007-8000-000000000000"):
        assert parse_partition(text) is None

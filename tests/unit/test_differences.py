"""Definitions are compared by what they say, not by how it is written down."""

from __future__ import annotations

from queen.core.differences import differences, fingerprint
from queen.wire.pipelines import decode_definition, plain

_ONE = {"name": "p", "reads": [{"name": "a", "queues": ["a"]}], "output": {"queue": "out"}}


def test_only_what_differs_is_named() -> None:
    old = {"graceMs": 1, "keys": {"user": "data.user"}, "where": ["a"], "top": None}
    new = {"graceMs": 1, "keys": {"item": "data.item"}, "where": ["a", "b"], "top": []}
    assert differences(old, new) == [
        "keys.user: data.user -> nothing",
        "keys.item: nothing -> data.item",
        'where: ["a"] -> ["a", "b"]',
    ]
    assert differences(old, old) == []


def test_lists_of_the_same_length_are_compared_one_by_one() -> None:
    assert differences({"reads": [{"name": "a"}]}, {"reads": [{"name": "b"}]}) == [
        "reads[0].name: a -> b"
    ]


def test_the_order_of_fields_and_defaults_that_are_said_make_no_difference() -> None:
    said = {**dict(reversed(_ONE.items())), "graceMs": 30000, "dedup": []}
    prints = {fingerprint(plain(decode_definition(one))) for one in (_ONE, said)}
    assert len(prints) == 1
    changed = decode_definition({**_ONE, "graceMs": 30001})
    assert fingerprint(plain(changed)) not in prints


def test_a_definition_survives_being_written_down() -> None:
    definition = decode_definition({**_ONE, "dedup": ["data.id"], "graceMs": 30000})
    assert decode_definition(plain(definition)) == definition
    assert decode_definition(plain(definition, whole=True)) == definition

"""One tree, one table."""

from __future__ import annotations

from collections.abc import Iterator

from queen import errors
from queen.errors import QueenError
from queen.server.api.failures import STATUS, failure


def leaves(cls: type[QueenError] = QueenError) -> Iterator[type[QueenError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from leaves(child)


def test_every_error_has_a_status_a_code_and_a_message() -> None:
    assert set(STATUS) == set(leaves())
    codes = [cls.code for cls in leaves()]
    assert len(set(codes)) == len(codes)
    for cls in leaves():
        assert cls.default_message().endswith(".")


def test_every_error_is_in_the_drawing() -> None:
    drawing = errors.__doc__ or ""
    for cls in leaves():
        assert cls.__name__ in drawing


def test_a_retryable_error_says_when() -> None:
    answer = failure(errors.OutcomeUnknown())
    assert answer.status == 503
    assert ("retry-after", "1") in answer.headers
    assert b'"outcome":"unknown"' in answer.body

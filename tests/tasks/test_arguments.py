"""Arguments of tasks: what is refused at the caller, and what a function gets."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from queen import Queen
from queen.client.tasks.arguments import Arguments


class Colour(Enum):
    RED = "red"


@dataclass
class Address:
    city: str
    code: int = 0


class Order(msgspec.Struct):
    id: int
    to: Address


@pytest.fixture
async def queen() -> AsyncIterator[Queen]:
    """It is never called: what is refused is refused before."""
    async with Queen("http://127.0.0.1:9") as made:
        yield made


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with what travels of its arguments."""
    arguments = Arguments(function)
    sent, named = arguments.decode(arguments.encode(*args, **kwargs))
    return function(*sent, **named)


def test_a_function_gets_what_its_annotations_say() -> None:
    def take(
        order: Order,
        at: datetime,
        colour: Colour,
        how: Literal["a", "b"],
        price: Decimal,
        number: UUID,
        blob: bytes,
        pause: timedelta | None = None,
        addresses: tuple[Address, ...] = (),
    ) -> Any:
        return locals()

    given = {
        "order": Order(1, Address("Bonn")),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "colour": Colour.RED,
        "how": "b",
        "price": Decimal("1.50"),
        "number": UUID(int=7),
        "blob": b"\x00\xff",
        "pause": timedelta(seconds=90),
        "addresses": (Address("Ulm", 8), Address("Köln")),
    }
    assert call(take, **given) == given
    first, *rest = given.values()
    assert call(take, first, *rest) == given


def test_every_kind_of_parameter_travels() -> None:
    def take(a: int, /, b: int, *more: int, c: str, d: str = "d", **named: float) -> Any:
        return a, b, more, c, d, named

    assert call(take, 1, 2, 3, 4, c="c", x=1.5) == (1, 2, (3, 4), "c", "d", {"x": 1.5})
    assert call(take, 1, b=2, c="c") == (1, 2, (), "c", "d", {})

    # Names that structs and this package use themselves.
    def awkward(self: int, kind: int, field_0: int, name: int = 1, args: int = 2) -> Any:
        return self, kind, field_0, name, args

    assert call(awkward, 1, kind=2, field_0=3, args=9) == (1, 2, 3, 1, 9)


def test_defaults_are_those_of_the_worker() -> None:
    """They do not travel: a worker with a newer version of the function uses its own."""

    def take(a: int, b: list[int] | None = None, c: int = 5) -> Any:
        return a, b, c

    assert Arguments(take).encode(1) == b'{"a":1}'
    assert call(take, 1) == (1, None, 5)


def test_parameters_without_annotations_take_any_json() -> None:
    assert call(lambda a, b=None: (a, b), {"x": [1, None]}) == ({"x": [1, None]}, None)


async def test_what_does_not_fit_is_refused_at_the_caller(queen: Queen) -> None:
    @queen.queue("q").task
    async def send(to: str, copies: int = 1, *, urgent: bool = False) -> None: ...

    odd: Any = send
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((), {}), (("a", 1, True), {}), (("a",), {"nope": 1}), (("a",), {"to": "b"})]
    for args, kwargs in calls:
        with pytest.raises(TypeError, match=r"test_arguments.*send: "):
            await odd.delay(*args, **kwargs)
    calls = [((1,), {}), (("a", "b"), {}), (("a", 1.5), {}), (("a",), {"urgent": "no"})]
    for args, kwargs in calls:
        with pytest.raises(msgspec.ValidationError, match=r"send: Expected .* - at `\$"):
            await odd.delay(*args, **kwargs)
    with pytest.raises(msgspec.ValidationError):
        await odd.at(datetime(2030, 1, 1, tzinfo=UTC), 5)
    with pytest.raises(TypeError, match="cannot be JSON"):
        await queen.queue("q").task(lambda a: a).delay(object())
    with pytest.raises(ValueError, match="NaN"):
        await queen.queue("q").task(lambda a: a).delay(float("nan"))
    with pytest.raises(ValueError, match="0 or more"):
        await send.after(-1, "a")


async def test_a_function_that_cannot_be_a_task_is_refused_when_it_is_made_one(
    queen: Queen,
) -> None:
    class Open:
        pass

    def take(connection: Open) -> None: ...

    take.__annotations__ = {"connection": Open}
    with pytest.raises(TypeError, match="cannot be a task: parameter 'connection'"):
        queen.queue("q").task(take)
    with pytest.raises(ValueError, match="partitions"):
        queen.queue("q").task(partitions=0)(lambda: None)
    with pytest.raises(ValueError, match="keep_result_s"):
        queen.queue("q").task(keep_result_s=1e9)(lambda: None)
    with pytest.raises(TypeError, match="unexpected keyword"):
        queen.queue("q").task(bogus=1)(lambda: None)
    with pytest.raises(ValueError, match="name of a queue"):
        queen.queue().task(lambda: None)


async def test_a_task_is_still_its_function(queen: Queen) -> None:
    @queen.queue("q").task
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(4) == 8
    assert (vars(double)["__name__"], double.__doc__) == ("double", "Twice as much.")
    assert double.name.endswith("test_a_task_is_still_its_function.<locals>.double")
    assert queen.tasks["q"][double.name] is double
    named = queen.queue("q").task(name="n")(functools.partial(double, 1).func)
    assert named.name == "n"
    # What the label of a queue was called before is called so still.
    assert queen.queue("q").task("label")._task == "label"
    assert queen.queue("q").task(task="label")._task == "label"

"""Arguments of tasks: checked where a task is called, and decoded where it runs, by the same rule.

A call becomes an object of JSON, each argument under the name of its parameter; `*args` are a list
under theirs, `**kwargs` an object. What the annotations say is what is taken and what a function
gets: a dataclass comes as a dataclass, a `datetime` as a `datetime`. A parameter without an
annotation takes any JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from queen.client.payloads import encode_payload

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Arguments:
    """The parameters of a function, as they travel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        hints = _hints(function)
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for number, parameter in enumerate(self.signature.parameters.values()):
            # Under names of their own: a parameter may be called like something of a struct.
            field = f"field_{number}"
            names[field] = parameter.name
            hint = hints.get(parameter.name, Any)
            fields.append((field, _travelling(parameter, hint), _default(parameter)))
        required = [(name, kind) for name, kind, default in fields if default is _EMPTY]
        others = [(name, kind, default) for name, kind, default in fields if default is not _EMPTY]
        kind = msgspec.defstruct(
            "Call",
            [*required, *others],
            rename=names,
            forbid_unknown_fields=True,
            kw_only=True,
        )
        self._fields = names
        self._decoder = msgspec.json.Decoder(kind, dec_hook=_decode_model)
        result = hints.get("return", Any)
        self._result = msgspec.json.Decoder(
            result if _can_travel(result) else Any, dec_hook=_decode_model
        )

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        """Return the arguments of a call as they travel; raises `TypeError`, or
        `msgspec.ValidationError`, for a call that the function does not take."""
        bound = self.signature.bind(*args, **kwargs)
        encoded = encode_payload(dict(bound.arguments))
        # As the worker will do it: what is not taken there is refused here.
        self.decode(encoded)
        return encoded

    def decode(self, encoded: bytes | msgspec.Raw) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, as the function takes them."""
        call = self._decoder.decode(encoded)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for field, name in self._fields.items():
            value, parameter = getattr(call, field), self.signature.parameters[name]
            if parameter.kind in _POSITIONAL:
                args.append(value)
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= value
            else:
                kwargs[name] = value
        return tuple(args), kwargs

    def decode_result(self, encoded: bytes | msgspec.Raw) -> Any:
        """Return a result as the function has returned it, if its annotation says what it is."""
        return self._result.decode(encoded)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{function.__qualname__}: its annotations name {error.name!r}, which is not there when"
            " the task is defined: import it outside of TYPE_CHECKING"
        ) from None


def _travelling(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type of a parameter as it travels; raises `TypeError` when it cannot."""
    if not _can_travel(hint):
        raise TypeError(f"parameter {parameter.name!r}: {hint!r} cannot travel as JSON")
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return list[hint]
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return dict[str, hint]
    return hint


def _can_travel(hint: Any) -> bool:
    """Whether a type is one of those that JSON is decoded to."""
    try:
        info = msgspec.inspect.type_info(hint)
    except TypeError:
        return False
    return not isinstance(info, msgspec.inspect.CustomType) or hasattr(hint, "model_validate")


def _decode_model(kind: type[Any], value: Any) -> Any:
    """Return a model of pydantic, which need not be installed to be served."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        raise NotImplementedError(f"{kind!r} cannot travel as JSON")
    return validate(value)


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return msgspec.field(default_factory=list)
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return msgspec.field(default_factory=dict)
    default = parameter.default
    if default is _EMPTY:
        return _EMPTY
    # One for all calls, as Python has it.
    return msgspec.field(default_factory=lambda: default)

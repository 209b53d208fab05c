"""The arguments of an operation, arrays first and then settings: bound, checked and described."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from . import backend
from .backend import Array
from .modes import modes
from .tape import Variable

_PLAIN = frozenset({bool, complex, float, int, type(None), slice, str, tuple})
_REPORTED = (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError)


class Signature:
    """The parameters of an operation: the names of its arrays (none if it takes any number of them)
    and of its settings; whether it has the keyword `wanted`; and the inspect.Signature shown to
    callers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        self.name, self.wanted = function.__name__, any(p.name == "wanted" for p in parameters)
        parameters = [p for p in parameters if p.name != "wanted"]
        self.shown = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        arrays = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.arrays, self.arity = tuple(p.name for p in arrays), len(arrays)
        self.settings = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self._array_names = frozenset(self.arrays)
        self._optional = {p.name for p in arrays if p.default is None}
        self._texts = {p.name for p in arrays if p.annotation in (str, "str")}
        self._dtypes: dict[Any, Any] = {}

    def bind(self, inputs: Any, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arrays in order, even if named or in a list, and the settings by name. A number or
        None for a named array argument becomes a setting."""
        positional: tuple[Any, ...] = ()
        if not self._any_number:
            inputs, positional = inputs[: self.arity], inputs[self.arity :]
        elif inputs and isinstance(inputs[0], list | tuple):
            inputs, positional = tuple(inputs[0]), inputs[1:]
        if positional:
            by_place = dict(zip(self.settings, positional))  # noqa: B905  checked below
            if len(by_place) < len(positional) or not settings.keys().isdisjoint(by_place):
                number = len(inputs) + len(positional)
                what = f"got {number} arguments by position: too many, or named as well"
                raise TypeError(f"{self.name}{self.shown} {what}")
            settings |= by_place
        if not self._array_names.isdisjoint(settings):
            absent = self.arrays[len(inputs) :]
            while absent and isinstance(settings.get(absent[-1]), Number | str | None):
                absent = absent[:-1]
            inputs = (*inputs, *(settings.pop(name, None) for name in absent))
        if not _PLAIN.issuperset(map(type, settings.values())):
            settings = {name: self._setting(name, x) for name, x in settings.items()}
        return inputs, settings

    def _setting(self, name: str, x: Any) -> Any:
        """A setting as an array or a Python number."""
        if isinstance(x, Variable):
            if x._edge is not None and not modes.get().no_grad:
                raise TypeError(f"{self.name}: no gradient flows to {name}: detach() it")
            x = x._data
        if backend.is_integral(x) and not x.ndim:
            return int(x)  # an array could be changed later
        return backend.number(x)

    def float_dtype(self, arrays: list[Any]) -> Any:
        """The dtype of the floating-point arrays, None if there are none.

        Raises TypeError for arrays of two libraries or two such dtypes, since nothing is promoted
        silently, and for arguments that are not arrays.
        """
        key = tuple([(type(x), getattr(x, "dtype", None)) for x in arrays])
        try:
            return self._dtypes[key]
        except KeyError:
            dtype = self._dtypes[key] = self._common_dtype(arrays)
            return dtype

    def _common_dtype(self, arrays: list[Any]) -> Any:
        present = {label: x for label, x in self.named(arrays).items() if backend.is_array(x)}
        for label, x in self.named(arrays).items():
            accepted = self._optional if x is None else self._texts if type(x) is str else present
            if not (isinstance(x, Number) or label in accepted):
                fix = ": make it one first" if isinstance(x, list | tuple) else ""
                what = f"{label} must be an array, not {backend.described(x)}"
                raise TypeError(f"{self.name}: {what}{fix}")
        if not all(backend.has_kind(x, ("bool", "numeric")) for x in present.values()):
            raise TypeError(f"{self.name}: {_described(present)}: numbers are required")
        floats = [x.dtype for x in present.values() if backend.is_floating(x)]
        if len({*map(backend.namespace, present.values())}) > 1 or len(set(floats)) > 1:
            fix = "convert one, nothing is converted silently"
            raise TypeError(f"{self.name}: {_described(present)}: {fix}")
        return floats[0] if floats else None

    def checked(
        self, result: Any, dtype: Any, recorded: bool, converts: bool
    ) -> tuple[Any, list[Array], Any]:
        """The parts of the function's result: the value, the value as a list, and the pullback.

        dtype is that of the arguments; the value must have it unless the operation converts.
        """
        if type(result) is not tuple or len(result) != 2 or not callable(result[1]):
            raise TypeError("an operation must return (value, pullback); pullback is a function")
        value, pullback = result
        if isinstance(value, list):
            raise TypeError("it must return several values as a tuple, not as a list")
        values = list(value) if type(value) is tuple else [value]
        for k, y in enumerate(values):
            if type(y) not in backend.known or y.dtype != dtype:
                values[k] = self._checked_value(
                    backend.asarray(y), None if converts else dtype, recorded
                )
        return value, values, pullback

    def _checked_value(self, y: Array, dtype: Any, recorded: bool) -> Array:
        if recorded and backend.is_complex(y):
            raise TypeError("complex values have no gradient: use no_grad()")
        if dtype is not None and y.dtype != dtype and backend.is_floating(y):
            fix = f"convert the other arguments to {dtype}, integers too"
            raise TypeError(f"{dtype} went in and {y.dtype} came out: {fix}")
        return y

    def label(self, k: int) -> str:
        """The name of an array argument."""
        return self.arrays[k] if k < self.arity else f"array {k}"

    def named(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The array arguments by name."""
        return {self.label(k): x for k, x in enumerate(arrays)}

    def explained(
        self,
        error: Exception,
        requirement: Callable[..., str | None] | None,
        arrays: list[Any],
        settings: dict[str, Any],
    ) -> Exception:
        """The error with the operation's name first, what is required, and the arguments.

        It keeps its class, or gets the nearest base class that takes a text.
        """
        backend.explain_memory(error)
        if not isinstance(error, _REPORTED):
            return error
        what = None
        if requirement is not None:
            with contextlib.suppress(Exception):
                shown = {name: x for name, x in settings.items() if name != "wanted"}
                what = requirement(*arrays, **shown)
        present = [x for x in arrays if backend.is_array(x)]
        kinds: Sequence[type] = type(error).__mro__
        if type(error) is RuntimeError and not all(type(x) is backend.HostArray for x in present):
            kinds = (ValueError,)  # torch's RuntimeError for shapes that do not match
        if isinstance(error, AttributeError) and len(present) < len(arrays):
            kinds, what = (TypeError,), what or "it needs arrays, not numbers"
        what = what or getattr(error, "what", str(error))  # from an operation that this one called
        text = f"{self.name}: {what}" + (f" ({_described(self.named(arrays))})" if arrays else "")
        for kind in kinds:
            with contextlib.suppress(Exception):
                explained: Any = kind(text)
                if str(explained) == text:
                    explained.what = what
                    return explained
        return error


def _described(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{label} is {backend.described(x)}" for label, x in arguments.items())

"""Settings that several functions or classes share, each written down once: as a field of a
dataclass. The decorator `arguments_of` turns the fields into arguments.

@dataclass(kw_only=True)
class Sampling:
    temperature: float = 1.0

@arguments_of(Sampling)
def generate(model, sampling): …            generate(model, temperature=0.5)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

# Types of the arguments that a function has for itself.
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
Result = TypeVar("Result")
Settings_co = TypeVar("Settings_co", covariant=True)
Fields = ParamSpec("Fields")


class _Decorator(Protocol[Settings_co, Fields]):
    """What `arguments_of` returns, for functions with one, three or four arguments of their own:
    editors and type checkers learn from it which arguments the decorated function has."""

    @overload
    def __call__(
        self, function: Callable[[A, Settings_co], Result]
    ) -> Callable[Concatenate[A, Fields], Result]: ...

    @overload
    def __call__(
        self, function: Callable[[A, B, C, Settings_co], Result]
    ) -> Callable[Concatenate[A, B, C, Fields], Result]: ...

    @overload
    def __call__(
        self, function: Callable[[A, B, C, D, Settings_co], Result]
    ) -> Callable[Concatenate[A, B, C, D, Fields], Result]: ...


def arguments_of(settings: Callable[Fields, Settings_co]) -> _Decorator[Settings_co, Fields]:
    """A decorator for a function whose last argument is an object of a dataclass. Callers pass the
    fields of the dataclass by name instead, and the function receives the object made of them.

    The signature that `help` shows has the fields with their defaults, required ones first.
    """

    made: Callable[..., Any] = settings

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        # Of the function's arguments, all but the object; then the arguments that make the object.
        *own, _ = inspect.signature(function).parameters.values()
        fields = inspect.signature(settings).parameters.values()
        signature = inspect.Signature(sorted([*own, *fields], key=_place))

        @functools.wraps(function)
        def called(*args: Any, **keywords: Any) -> Any:
            # As in a call of Python's, none may be missing, unknown or given twice.
            try:
                given = signature.bind(*args, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}() {error}") from None
            first = [given.pop(parameter.name) for parameter in own]
            return function(*first, made(**given))

        called.__signature__ = signature  # type: ignore[attr-defined]
        return called

    return decorated


def _place(parameter: inspect.Parameter) -> tuple[int, bool]:
    """The sort key of a parameter in a signature: positional ones come first, then those passed by
    name, required ones before those with a default."""
    return parameter.kind, parameter.default is not parameter.empty

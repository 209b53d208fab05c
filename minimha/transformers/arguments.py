"""Settings of a class, each written down once: as a field of a dataclass. `arguments_of` turns the
fields into arguments of the class, and `explained_by` adds their meaning to what `help` shows.

@dataclass(kw_only=True)
class Settings:
    width: int = 8

@explained_by(Settings)
class Layer:
    @arguments_of(Settings)
    def __init__(self, settings): …             Layer(width=16)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

Class = TypeVar("Class", bound=type)
Settings = TypeVar("Settings")
Fields = ParamSpec("Fields")

# Type checkers and editors learn from these types that __init__ takes the fields of the dataclass.
Init = Callable[[Any, Settings], None]
InitOfFields = Callable[Concatenate[Any, Fields], None]


def arguments_of(
    settings: Callable[Fields, Settings],
) -> Callable[[Init[Settings]], InitOfFields[Fields]]:
    """A decorator for an `__init__` whose only argument after self is an instance of the dataclass
    `settings`. Callers pass the fields of the dataclass as arguments, such as Layer(width=16), and
    `__init__` receives the instance made from them, Settings(width=16).

    The signature that `help` shows has the fields with their defaults, required ones first.
    """
    name = getattr(settings, "__qualname__", "")

    def decorated(init: Init[Settings]) -> InitOfFields[Fields]:
        @functools.wraps(init)
        def called(self: Any, *args: Fields.args, **keywords: Fields.kwargs) -> None:
            try:
                made = settings(*args, **keywords)
            except TypeError as error:
                # Python's message about missing or unknown arguments names what was not called.
                message = str(error).replace(f"{name}.__init__()", f"{init.__qualname__}()")
                error.args = (message,)
                raise
            init(self, made)

        # `help` and `typing.get_type_hints` look here for the arguments.
        this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        fields = inspect.signature(settings, eval_str=True).parameters.values()
        parameters = [this, *sorted(fields, key=_place)]
        signature = inspect.Signature(parameters, return_annotation=None)
        called.__signature__ = signature  # type: ignore[attr-defined]
        called.__annotations__ = {field.name: field.annotation for field in fields}
        called.__annotations__["return"] = None
        return called

    return decorated


def explained_by(settings: type) -> Callable[[Class], Class]:
    """A decorator that appends to a class's docstring those of the dataclass `settings` and of the
    dataclasses that it extends: `help` then explains all arguments of the class."""

    def decorated(cls: Class) -> Class:
        explaining = [each for each in settings.__mro__ if is_dataclass(each)]
        texts = [inspect.getdoc(each) or "" for each in (cls, *explaining)]
        cls.__doc__ = "\n\n".join(texts) + "\n"
        return cls

    return decorated


def _place(parameter: inspect.Parameter) -> tuple[int, bool]:
    """The sort key of a parameter in a signature: positional ones come first, then those passed by
    name, required ones before those with a default."""
    return parameter.kind, parameter.default is not parameter.empty

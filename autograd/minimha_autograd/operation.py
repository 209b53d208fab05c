"""The one concept: an operation is a function on arrays that returns its value and its pullback.

    @operation
    def exp(x):
        y = xp.exp(x)
        def pullback(dy):
            return (dy * y,)
        return y, pullback

Positional arguments are arrays (or numbers, or None), keywords are settings. The pullback takes one
cotangent for each value, None where nothing flows back, and returns a tuple with one gradient for
each positional argument, None for those that have none. It must not change a cotangent in place,
since others may share it. The arrays that it closes over are kept until backward(), so it should
refer to no more than it needs.

An operation with a keyword `wanted` is told which of these gradients are wanted, and may skip the
work for the others. It receives a named tuple of booleans whose fields are the names of its arrays:
`wanted.x`. An operation on any number of arrays, `*xs`, has no names for them and receives a plain
tuple.

The function receives 16-bit arguments as float32, and its pullback 16-bit cotangents: see `half`.
"""

from __future__ import annotations

import functools
import inspect
from collections import namedtuple
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any, Protocol

from . import backend, debug, refusals
from .half import of_wide, rounded, widened
from .modes import modes
from .tape import Node, Pullback, Variable

Wanted = Any
"""The type of `wanted`: each operation has a named tuple of its own."""


class Operation(Protocol):
    """The result of `operation`: for arrays it returns arrays; if any argument is a Tensor, it
    returns Tensors. `with_pullback` takes arrays and returns the value and the pullback.

    `function` is the function as it was written, for calls inside other operations: these check
    their arguments already, and guard what it saves. `wanted` makes the named tuple that such a
    call passes on, False where nothing is given: `linear.wanted(x=True, w=True)`."""

    __name__: str
    __signature__: inspect.Signature
    function: Callable[..., tuple[Any, Pullback]]
    wanted: Callable[..., Wanted]

    def __call__(self, *inputs: Any, **settings: Any) -> Any: ...

    def with_pullback(
        self, *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]: ...


registry: dict[str, Operation] = {}
"""Every operation by its module and name. The tests require a record of each of ours."""


def operation(
    function: Callable[..., tuple[Any, Pullback]] | None = None,
    *,
    requirement: Callable[..., str | None] | None = None,
    converts: bool = False,
    settings: tuple[str, ...] = (),
    describes: bool = True,
    narrow: tuple[str, ...] = (),
    native: Callable[..., bool] | None = None,
    selecting: tuple[str, ...] = (),
) -> Any:
    """Lift a function on arrays, which returns its value and its pullback, to Tensors.

    function     takes arrays by position and settings by name, returns (value, pullback), several
                 values as a tuple: see the top of `minimha_autograd/operation.py`
    requirement  called with the arguments after an error: returns the requirement that they violate
                 and the likely fix, or None
    converts     the value may have another dtype or library than that of the arguments
    settings     the positional arguments that are settings as well; their gradients are None
    describes    errors list the arguments; False if those of the function say what is wrong
    narrow       the arguments that may be of 16 or 8 bits beside wider ones, also in a class that
                 the function knows; the pullback returns wide gradients for them
    native       a predicate of the arguments from `half`: whether the function receives 16-bit
                 floats as they are; by default it receives float32
    selecting    the settings that are indices: arrays without axes in them stay on their device,
                 and in all other settings become Python numbers, unless they are boolean

    Settings may follow the arrays by position, and arrays may be named. `with_pullback` takes
    arrays and returns the value and the pullback, in which broadcasting is undone.

    The operation raises TypeError for arrays of two libraries, for arrays of two float types
    (unless `narrow` allows it), and for arguments that are not arrays or numbers; None is allowed
    where it is the default. It raises common errors of the library again with its own name, the
    requirement and the arguments. The pullback raises TypeError unless it returns one gradient for
    each argument.
    """
    if function is None:
        return functools.partial(
            operation, requirement=requirement, converts=converts, settings=settings,
            describes=describes, narrow=narrow, native=native, selecting=selecting,
        )  # fmt: skip
    signature = Signature(
        function, requirement, converts, settings, describes, narrow, native, selecting
    )
    name = signature.name
    arity = signature.arity
    call = signature.call

    @functools.wraps(function)
    def lifted(*inputs: Any, **given: Any) -> Any:
        if given or len(inputs) != arity:
            inputs, given = signature.bind(inputs, given)
        open_blocks = modes.get()

        # The arrays, and for those whose gradient is wanted their edges and shapes.
        variable = None
        recorded = False
        arrays, edges, shapes = [], [], []
        for x in inputs:
            edge = shape = None
            if isinstance(x, Variable):
                variable = x
                x = variable._data  # noqa: PLW2901
                if variable._edge is not None and not open_blocks.no_grad:
                    edge = variable._edge
                    shape = x.shape
                    recorded = True
            elif type(x) not in backend.known:
                x = backend.number(x)  # noqa: PLW2901
            arrays.append(x)
            edges.append(edge)
            shapes.append(shape)

        value, values, pullback, dtype, halves = call(arrays, edges, given, recorded)

        # Values of Tensors are Tensors.
        if variable is not None:
            node = None
            if recorded:
                node = Node(signature, pullback, edges, shapes, dtype, len(values), halves)
            for k, y in enumerate(values):
                values[k] = variable._made(y, node, k)
                for see in open_blocks.watchers:
                    values[k] = see(name, values[k])
        return tuple(values) if type(value) is tuple else values[0]

    @functools.wraps(function)
    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **given: Any
    ) -> tuple[Any, Pullback]:
        inputs, given = signature.bind(arrays, given)
        bound = [backend.number(x) for x in inputs]
        if wanted is None:
            wanted = tuple(map(backend.is_floating, bound))
        value, values, pullback, dtype, halves = call(bound, wanted, given, recorded=False)
        result = tuple(values) if type(value) is tuple else values[0]

        # Within no_grad, or of integers, there is nothing to guard.
        if not any(wanted):
            return result, lambda *_: (None,) * len(bound)
        shapes = [x.shape if want else None for x, want in zip(bound, wanted)]  # noqa: B905
        node = Node(signature, pullback, (), shapes, dtype, len(values), halves)
        return result, node.pullback

    made: Any = lifted
    made.with_pullback = with_pullback
    made.function = function
    made.wanted = signature.wanted
    made.__signature__ = signature.shown
    registry[f"{function.__module__}.{function.__name__}"] = made
    return made


_PLAIN = frozenset({bool, complex, float, int, type(None), str})
_NUMBERS = frozenset({int, float, type(None)})


class Signature:
    """The function of an operation, with the names of its arrays (none if it takes any number of
    them) and of its settings; whether it has the keyword `wanted`, and what makes it from booleans;
    and the inspect.Signature shown to callers. The other arguments are those of `operation`."""

    def __init__(
        self,
        function: Callable[..., Any],
        requirement: Callable[..., str | None] | None,
        converts: bool,
        settings: tuple[str, ...],
        describes: bool,
        narrow: tuple[str, ...],
        native: Callable[..., bool] | None,
        selecting: tuple[str, ...],
    ) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        self.name = function.__name__
        self.takes_wanted = any(p.name == "wanted" for p in parameters)
        parameters = [p for p in parameters if p.name != "wanted"]
        self.shown = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])

        arrays = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.arrays = tuple(p.name for p in arrays)
        self.arity = len(arrays)
        self.settings = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._array_names = frozenset(self.arrays)
        self._optional = {p.name for p in arrays if p.default is None}
        self.wanted = _named_tuple(self.arrays) if self.arrays else _plain_tuple

        self._function = function
        self._requirement = requirement
        self._converts = converts
        self._not_arrays = settings
        self._describes = describes
        self._narrow = narrow
        self._native = native
        self._selecting = selecting
        self._dtypes: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def call(
        self, arrays: list[Any], wanted: Any, settings: dict[str, Any], recorded: bool
    ) -> tuple[Any, list[Any], Pullback, Any, tuple[Any, ...]]:
        """The value, the value as a list of arrays, the pullback, the dtype of its gradients, and
        the 16-bit dtypes of the arguments, as in `Node`."""
        if self.takes_wanted:
            settings["wanted"] = self.wanted(*map(bool, wanted))

        # The dtypes are computed once for each combination of types.
        kinds = tuple([(type(x), getattr(x, "dtype", None)) for x in arrays])
        known = self._dtypes.get(kinds)
        if known is None:
            known = self._dtypes[kinds] = self._common_dtype(arrays)
        dtype, halves = known
        half = getattr(dtype, "itemsize", 0) == 2

        wide = half and not (self._native and self._native(*arrays))
        try:
            inputs = self._widened(arrays) if wide else arrays
            result = self._function(*inputs, **settings)
            if type(result) is not tuple or len(result) != 2 or not callable(result[1]):
                raise TypeError(
                    "an operation must return (value, pullback); pullback is a function"
                )
            value, pullback = result
            if wide:
                pullback = of_wide(pullback)

            if isinstance(value, list):
                raise TypeError("it must return several values as a tuple, not as a list")
            values = list(value) if type(value) is tuple else [value]
            for k, y in enumerate(values):
                if type(y) not in backend.known:
                    y = values[k] = backend.asarray(y)  # noqa: PLW2901  NumPy makes scalars
                if y.dtype != dtype:
                    if half and not self._converts:
                        y = values[k] = rounded(y, dtype)  # noqa: PLW2901
                    refusals.check_dtype(y, None if self._converts else dtype, recorded)
        except Exception as error:
            raise self._explained(error, arrays, settings) from error

        if modes.get().detect_anomaly:
            debug.check_values(self.name, self.labelled(arrays) | settings, values)
        return value, values, pullback, dtype, halves

    def _widened(self, arrays: list[Any]) -> list[Any]:
        """The arrays as float32, except those that may be narrow beside it."""
        labelled = self.labelled(arrays).items()
        return [x if name in self._narrow else widened(x) for name, x in labelled]

    def _common_dtype(self, arrays: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """The dtype of the floating-point arrays, and the 16-bit dtypes among theirs."""
        alike = {}
        for name, x in self.labelled(arrays).items():
            itemsize = getattr(getattr(x, "dtype", None), "itemsize", 8)
            differs = name in self._narrow and itemsize <= 2
            if name not in self._not_arrays and not differs:
                alike[name] = x
        dtype = refusals.common_dtype(self.name, alike, self._optional)
        halves = [x.dtype if backend.is_half(x) else None for x in arrays]
        return dtype, tuple(halves) if any(map(backend.is_half, arrays)) else ()

    def _explained(
        self, error: Exception, arrays: list[Any], settings: dict[str, Any]
    ) -> Exception:
        shown = {name: x for name, x in settings.items() if name != "wanted"}
        required = self._requirement and functools.partial(self._requirement, *arrays, **shown)
        numbers = {n: x for n, x in settings.items() if n in self._array_names and x is not None}
        listed = self.labelled(arrays) | numbers if self._describes else {}
        return refusals.explained(error, self.name, listed, required)

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
            while absent and isinstance(settings.get(absent[-1]), str | None | Number):
                absent = absent[:-1]
            inputs = (*inputs, *(settings.pop(name, None) for name in absent))
        for name, x in settings.items():
            # Fast path: most settings are numbers or tuples of numbers.
            plain = type(x) in _PLAIN or (type(x) is tuple and _NUMBERS.issuperset(map(type, x)))
            if not plain and name not in self._selecting:
                settings = {**settings, name: self._setting(name, x)}
        return inputs, settings

    def _setting(self, name: str, x: Any) -> Any:
        """A setting as an array or a Python number."""
        if isinstance(x, Variable):
            if x._edge is not None and not modes.get().no_grad:
                raise TypeError(f"{self.name}: no gradient flows to {name}: detach() it")
            x = x._data
        # A mask may have no axes either, and stays an array.
        return x if backend.is_boolean(x) else backend.setting(x)

    def label(self, k: int) -> str:
        """The name of an array argument."""
        return self.arrays[k] if k < self.arity else f"array {k}"

    def labelled(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """The array arguments by name."""
        return {self.label(k): x for k, x in enumerate(arrays)}


def _named_tuple(names: tuple[str, ...]) -> Callable[..., Wanted]:
    """Makes named tuples of booleans with these fields, False where none is given."""
    no = [False] * len(names)
    fields: Any = namedtuple("Wanted", names, rename=True, defaults=no)  # type: ignore[misc]

    # Looking up an equal one takes half as long as making it.
    made: Callable[..., Wanted] = functools.cache(fields)
    return made


def _plain_tuple(*wants: bool) -> Wanted:
    return wants

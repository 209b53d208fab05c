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
from typing import Any, NamedTuple, Protocol

from . import backend, debug, refusals
from .half import of_wide, rounded, widened
from .modes import modes
from .tape import Node, Pullback, Variable

Wanted = Any
"""The type of `wanted`: each operation has a named tuple of its own."""


class Operation(Protocol):
    """What the decorator `operation` makes of a function. Called with arrays, it returns arrays; if
    any argument is a Tensor, it returns Tensors. `with_pullback` takes arrays and returns the value
    and the pullback, which computes the gradients of the arrays from those of the value.

    `function` is the function as it was written. Other operations call it directly, since they
    have checked their own arguments already. `wanted` makes the argument `wanted` of such a call, a
    named tuple with a boolean for each array: whether its gradient is to be computed. In
    `linear.wanted(x=True, w=True)`, it is False for each array that is not named. `wanted` is None
    if the function has no keyword of this name.
    """

    __name__: str
    __signature__: inspect.Signature
    function: Callable[..., tuple[Any, Pullback]]
    wanted: Callable[..., Wanted] | None

    def __call__(self, *inputs: Any, **settings: Any) -> Any: ...

    def with_pullback(
        self, *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]: ...


Dtypes = tuple[Any, tuple[Any, ...]]
"""The dtype of the floating-point arrays, None if there are none; then for each array its dtype if
that has 16 bits, else None, and () if none has."""

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
    requirement  called with the arguments after an error: returns a message with the requirement
                 that they violate and the likely fix, or None if they violate none
    converts     True if the value may differ from the arguments in dtype or library
    settings     the names of positional arguments that are settings, not arrays, such as the
                 subscripts of einsum; their gradients are None
    describes    whether errors list the arguments; False if the function's own errors name them
    narrow       the names of arguments, such as weights, that may have 16 or 8 bits beside wider
                 ones; they may also be objects, such as quantised weights, of a class that the
                 function knows. The pullback returns gradients of the wider dtype for them
    native       a function of the arguments, such as `half.always`, that says whether `function`
                 receives 16-bit floats as they are; without it, it receives them as float32
    selecting    the names of settings that are indices: an array without axes in them stays on its
                 device. In other settings it becomes a Python number, unless it is boolean

    Settings may follow the arrays by position, and arrays may be named. `with_pullback` takes
    arrays and returns the value and the pullback. This pullback undoes broadcasting: each gradient
    has the shape of its array.

    The operation raises TypeError for arrays of two libraries, for arrays of two float types
    (unless `narrow` allows it), and for arguments that are not arrays or numbers; None is allowed
    where it is the default. If the array library raises a common error, the operation raises it
    again with a message that has its own name, the requirement and the arguments. backward() raises
    TypeError if the pullback of `function` does not return one gradient for each argument.
    """
    options = Options(
        requirement=requirement,
        converts=converts,
        settings=settings,
        describes=describes,
        narrow=narrow,
        native=native,
        selecting=selecting,
    )

    # With arguments, @operation(…) is called before it has the function: it returns a decorator.
    if function is None:
        return functools.partial(_lifted, options=options)
    return _lifted(function, options)


class Options(NamedTuple):
    """How an operation treats its arguments: the arguments of `operation`, which explains them."""

    requirement: Callable[..., str | None] | None
    converts: bool
    settings: tuple[str, ...]
    describes: bool
    narrow: tuple[str, ...]
    native: Callable[..., bool] | None
    selecting: tuple[str, ...]


def _lifted(function: Callable[..., tuple[Any, Pullback]], options: Options) -> Any:
    signature = Signature(function, options)

    # Both get the name and the docstring of the function.
    named = functools.wraps(function)
    lifted: Any = named(_for_tensors(signature))
    lifted.with_pullback = named(_for_arrays(signature))
    lifted.function = function
    lifted.wanted = signature.wanted
    lifted.__signature__ = signature.shown

    # A function that is defined again, as in a notebook, replaces the old one.
    registry[f"{function.__module__}.{function.__name__}"] = lifted
    return lifted


def _for_tensors(signature: Signature) -> Callable[..., Any]:
    """The operation itself, a function of arrays and Tensors that calls the function of
    `signature`. It records a node on the tape if the gradient of any Tensor is wanted."""
    name = signature.name
    arity = signature.arity
    call = signature.call

    def lifted(*inputs: Any, **given: Any) -> Any:
        # Fast path: most calls pass all the arrays by position and nothing else.
        if given or len(inputs) != arity:
            inputs, given = signature.bind(inputs, given)
        open_blocks = modes.get()  # read once, since a context variable is slow

        variable = None  # one of the Tensors, if there are any
        recorded = False  # whether any gradient is wanted
        arrays = []
        edges = []  # None for an array whose gradient is not wanted
        shapes = []  # likewise
        for x in inputs:
            edge = None
            shape = None
            if isinstance(x, Variable):
                variable = x
                x = variable._data  # noqa: PLW2901
                if variable._edge is not None and not open_blocks.no_grad:
                    edge = variable._edge
                    shape = x.shape
                    recorded = True
            elif type(x) not in backend.namespaces:
                # A scalar of NumPy would impose its dtype; Python's numbers do not.
                x = backend.number(x)  # noqa: PLW2901
            arrays.append(x)
            edges.append(edge)
            shapes.append(shape)

        value, values, pullback, dtype, halves = call(arrays, edges, given, recorded)

        # Arrays give arrays. With a Tensor among them, all values are Tensors of one node.
        if variable is not None:
            node = None
            if recorded:
                node = Node(
                    signature,
                    pullback,
                    edges,  # where its gradients go
                    shapes,  # to which they are summed
                    dtype,
                    len(values),
                    halves,
                )
            for k, y in enumerate(values):
                values[k] = variable._made(y, node, k)

                # Gradient checks follow what the operations make.
                for see in open_blocks.watchers:
                    values[k] = see(name, values[k])

        # One value is returned by itself.
        if type(value) is tuple:
            return tuple(values)
        return values[0]

    return lifted


def _for_arrays(signature: Signature) -> Callable[..., tuple[Any, Pullback]]:
    """The operation's `with_pullback`, a function of arrays alone that calls the function of
    `signature`: it returns the value and the pullback, and records nothing on the tape."""

    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **given: Any
    ) -> tuple[Any, Pullback]:
        inputs, given = signature.bind(arrays, given)
        bound = [backend.number(x) for x in inputs]
        if wanted is None:
            # Integers have no gradient, and neither have numbers or None.
            wanted = tuple(map(backend.is_floating, bound))
        called = signature.call(bound, wanted, given, recorded=False)
        value, values, pullback, dtype, halves = called
        result: Any = tuple(values)
        if type(value) is not tuple:
            result = values[0]  # one value is returned by itself

        # Within no_grad, or of integers, there is nothing to guard.
        if not any(wanted):
            return result, lambda *_: (None,) * len(bound)

        # A node without edges is off the tape, but undoes broadcasting and checks the gradients.
        shapes = [x.shape if want else None for x, want in zip(bound, wanted)]  # noqa: B905
        node = Node(
            signature,
            pullback,
            (),  # edges
            shapes,
            dtype,
            len(values),
            halves,
        )
        return result, node.pullback

    return with_pullback


# Settings of these types need no conversion.
_PLAIN = frozenset({bool, complex, float, int, type(None), str})
_NUMBERS = frozenset({int, float, type(None)})


class Signature:
    """The function of an operation, and what its parameters say.

    name      of the function
    arrays    the names of its array arguments, such as ("a", "b"); () if it takes any number, *xs
    arity     the number of these names
    settings  the names of its settings
    wanted    makes the value of the function's keyword `wanted`, booleans that say which gradients
              are wanted; None if the function has no such keyword
    shown     the inspect.Signature for callers, without `wanted`
    """

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        parameters = list(inspect.signature(function).parameters.values())

        # Callers never see `wanted`, which is no argument of the operation.
        takes_wanted = any(p.name == "wanted" for p in parameters)
        parameters = [p for p in parameters if p.name != "wanted"]

        # As in f(a, b, *, axis): arrays stand before the star, settings behind it.
        arrays = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

        self.name = function.__name__
        self.arrays = tuple(p.name for p in arrays)
        self.arity = len(arrays)
        self.settings = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self.wanted = None
        if takes_wanted:
            self.wanted = _maker_of_wanted(self.arrays)

        # Without annotations: callers pass Tensors, too, where the function is given arrays.
        shown = [p.replace(annotation=p.empty) for p in parameters]
        self.shown = inspect.Signature(shown)

        self._function = function
        self._options = options
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)  # *arrays
        self._array_names = frozenset(self.arrays)
        self._optional = {p.name for p in arrays if p.default is None}  # b=None
        self._dtypes: dict[Any, Dtypes] = {}  # by the types of the arrays

    def call(
        self,
        arrays: list[Any],
        wanted: Sequence[Any],
        settings: dict[str, Any],
        recorded: bool,
    ) -> tuple[Any, list[Any], Pullback, Any, tuple[Any, ...]]:
        """Call the function. Returns its value, the value as a list of arrays, the pullback, and
        the two parts of `Dtypes`: the dtype that the floating-point arrays share, None if there are
        none; and for each array its dtype if that has 16 bits, else None, or () if none has.

        wanted    for each array something that is true if its gradient is wanted, such as the edge
                  along which the tape sends it, and else false, such as None
        recorded  whether a node of the tape will hold the pullback
        """
        options = self._options
        if self.wanted is not None:
            settings["wanted"] = self.wanted(*map(bool, wanted))

        # Comparing dtypes takes long, so it is done once for each combination of types.
        types = tuple([(type(x), getattr(x, "dtype", None)) for x in arrays])
        found = self._dtypes.get(types)
        if found is None:
            found = self._dtypes[types] = self._common_dtype(arrays)
        dtype, halves = found

        # In 16 bits a sum soon stops growing: unless the function is native, it gets float32.
        inputs = arrays
        half = getattr(dtype, "itemsize", 0) == 2
        in_float32 = half and not (options.native and options.native(*arrays))

        # Functions leave most checks to the library; its errors are explained here.
        try:
            if in_float32:
                inputs = self._widened(arrays)
            result = self._function(*inputs, **settings)
            if type(result) is not tuple or len(result) != 2 or not callable(result[1]):
                raise TypeError(
                    "an operation must return (value, pullback); pullback is a function"
                )
            value, pullback = result
            if in_float32:
                pullback = of_wide(pullback)
            if isinstance(value, list):
                raise TypeError("it must return several values as a tuple, not as a list")

            # A list, since values are replaced below, and by Tensors in `lifted`.
            values = [value]
            if type(value) is tuple:
                values = list(value)
            for k, y in enumerate(values):
                if type(y) not in backend.namespaces:
                    y = backend.asarray(y)  # noqa: PLW2901  NumPy's sum over all axes is a scalar
                    values[k] = y
                if y.dtype != dtype:
                    values[k] = self._rounded(y, dtype, recorded)
        except Exception as error:
            raise self._explained(error, arrays, settings) from error

        if modes.get().detect_anomaly:
            given = self.labelled(arrays) | settings
            debug.check_values(self.name, given, values)
        return value, values, pullback, dtype, halves

    def _rounded(self, y: Any, dtype: Any, recorded: bool) -> Any:
        """The value y in `dtype`, that of the arguments: rounded if that has 16 bits. With the
        option `converts`, y may have any dtype. Raises TypeError for another floating-point dtype
        and, if the call is `recorded` on the tape, for a complex value."""
        if self._options.converts:
            refusals.check_dtype(y, None, recorded)
            return y

        # This is the only rounding of what was computed in float32.
        if getattr(dtype, "itemsize", 0) == 2:
            y = rounded(y, dtype)
        refusals.check_dtype(y, dtype, recorded)
        return y

    def _widened(self, arrays: list[Any]) -> list[Any]:
        """The arrays, those of 16-bit floats converted to float32, except for arguments that are
        declared `narrow`."""
        inputs = []
        for name, x in self.labelled(arrays).items():
            if name not in self._options.narrow:
                x = widened(x)  # noqa: PLW2901
            inputs.append(x)
        return inputs

    def _common_dtype(self, arrays: list[Any]) -> Dtypes:
        # Only those that must have the same dtype are compared.
        alike = {}
        for name, x in self.labelled(arrays).items():
            if name in self._options.settings:
                continue
            dtype = getattr(x, "dtype", None)
            itemsize = getattr(dtype, "itemsize", 8)
            if name in self._options.narrow and itemsize <= 2:
                continue  # such as weights of 8 bits, widened as they are used
            alike[name] = x
        dtype = refusals.common_dtype(self.name, alike, self._optional)

        # Gradients are rounded to the dtype of their own argument, which may be `narrow`.
        halves: tuple[Any, ...] = ()
        if any(map(backend.is_half, arrays)):
            halves = tuple(x.dtype if backend.is_half(x) else None for x in arrays)
        return dtype, halves

    def _explained(
        self,
        error: Exception,
        arrays: list[Any],
        settings: dict[str, Any],
    ) -> Exception:
        """The error to raise in place of `error`. Its message has the name of the operation, the
        requirement that was violated or else the old message, and the arguments."""
        # The requirement is looked at only if the error is one that it may explain.
        required = None
        if self._options.requirement is not None:
            shown = {name: x for name, x in settings.items() if name != "wanted"}
            required = functools.partial(self._options.requirement, *arrays, **shown)

        listed = {}
        if self._options.describes:
            listed = self.labelled(arrays)
            for name, x in settings.items():
                # A number given by the name of an array; see `bind`.
                if name in self._array_names and x is not None:
                    listed[name] = x
        return refusals.explained(error, self.name, listed, required)

    def bind(self, inputs: Any, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Sort the arguments of a call: return the arrays in order, even if the call names them or
        gives them in a list, and the settings by name, even if the call gives them by position. A
        named number or None in place of the last array, as in b=2, counts as a setting."""
        positional: tuple[Any, ...] = ()
        if not self._any_number:
            positional = inputs[self.arity :]  # sum(x, 0)
            inputs = inputs[: self.arity]
        elif inputs and isinstance(inputs[0], list | tuple):
            positional = inputs[1:]  # concat([x, y], 0)
            inputs = tuple(inputs[0])

        if positional:
            # zip drops those that are too many, which the lengths show.
            by_place = dict(zip(self.settings, positional))  # noqa: B905
            if len(by_place) < len(positional) or not settings.keys().isdisjoint(by_place):
                number = len(inputs) + len(positional)
                what = f"got {number} arguments by position: too many, or named as well"
                raise TypeError(f"{self.name}{self.shown} {what}")
            settings |= by_place

        # Arrays given by name, as in matmul(a, b=x).
        if not self._array_names.isdisjoint(settings):
            named = self._by_name(settings, len(inputs))
            inputs = (*inputs, *named)

        for name, x in settings.items():
            # Fast path: most settings are numbers or tuples of numbers.
            if type(x) in _PLAIN:
                continue
            if type(x) is tuple and _NUMBERS.issuperset(map(type, x)):
                continue
            if name in self._options.selecting:
                continue  # an index, which the operation converts itself
            converted = self._setting(name, x)
            settings = {**settings, name: converted}  # a new one, since this loop reads the old
        return inputs, settings

    def _by_name(self, settings: dict[str, Any], number_before: int) -> list[Any]:
        """Take the arrays that a call gives by name out of the settings, and return them in order.
        They come after the `number_before` arrays that it gives by position. Numbers and None at
        the end are no arrays, and stay settings."""
        names = self.arrays[number_before:]
        while names and isinstance(settings.get(names[-1]), str | None | Number):
            names = names[:-1]
        return [settings.pop(name, None) for name in names]

    def _setting(self, name: str, x: Any) -> Any:
        """The setting x, called `name`, as the function receives it: a Tensor becomes its array,
        and an array without axes a Python number unless it is boolean. Raises TypeError for a
        Tensor that requires a gradient, except in no_grad."""
        if isinstance(x, Variable):
            if x._edge is not None and not modes.get().no_grad:
                raise TypeError(f"{self.name}: no gradient flows to {name}: detach() it")
            x = x._data

        # A mask without axes stays an array; other arrays without axes are numbers.
        if backend.is_boolean(x):
            return x
        return backend.setting(x)

    def label(self, k: int) -> str:
        """The name of the array argument number k, such as "a"; "array k" if the function takes any
        number of arrays."""
        if k < self.arity:
            return self.arrays[k]
        return f"array {k}"  # one of *arrays

    def labelled(self, arrays: Sequence[Any]) -> dict[str, Any]:
        """A dictionary of the array arguments by name."""
        return {self.label(k): x for k, x in enumerate(arrays)}


def _maker_of_wanted(names: tuple[str, ...]) -> Callable[..., Wanted]:
    """A function that makes `wanted`, the argument of an operation that says which gradients to
    compute: a named tuple of booleans whose fields are the names of the arrays. The function takes
    the booleans by position or by name; those left out are False. If `names` is empty, it makes a
    plain tuple."""
    if not names:
        return lambda *booleans: booleans
    left_out = [False] * len(names)

    # Renamed, since a name with an underscore in front cannot be a field.
    fields: Any = namedtuple("Wanted", names, rename=True, defaults=left_out)  # type: ignore[misc]

    # Looking up an equal one takes half as long as making it.
    cached: Callable[..., Wanted] = functools.cache(fields)
    return cached

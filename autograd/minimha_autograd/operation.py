"""The one concept: an operation is a function on arrays that returns its value and its pullback.

    @operation
    def exp(x):
        y = xp.exp(x)
        def pullback(dy):
            return (dy * y,)
        return y, pullback

Positional arguments are arrays (or numbers, or None), keywords are settings. The pullback takes a
cotangent for each value, None where nothing flows back, and returns a tuple with one gradient for
each positional argument, None for those that have none. What it closes over is saved until
backward(), so it should name no more than it needs.

An operation with a keyword `wanted` is told which of these gradients are wanted, as a tuple of
booleans, and may leave out the work for the others.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Sequence
from numbers import Number
from types import FunctionType
from typing import Any, Protocol

from . import anomaly, backend
from .backend import exact, known
from .modes import in_force, is_recording, no_grad, open_blocks, watched
from .pullback import PAIR, Fitted, Pullback, plain
from .saved import checksums
from .tape import Node, noted, order
from .tensor import Tensor

_new_tensor = Tensor.__new__
_ABSENT = object()
_Plan = tuple[tuple[bool, ...], int | None]
_NUMBERS = frozenset({bool, complex, float, int})
_SETTINGS = _NUMBERS | {type(None), slice, str, tuple}
_ERRORS = (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError)


class Operation(Protocol):
    """What `operation` makes of a function: called with arrays it gives arrays, with a Tensor among
    them Tensors; `with_pullback` takes arrays and gives the value and the pullback."""

    __name__: str
    __doc__: str | None
    __signature__: inspect.Signature
    parameters: tuple[str, ...]

    def __call__(self, *inputs: Any, **settings: Any) -> Any: ...

    def with_pullback(
        self, *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]: ...


registry: dict[str, Operation] = {}
"""Every operation by its module and name. The tests ask for a record of each of ours."""


def operation(  # noqa: PLR0915  what follows is three short functions
    function: Callable[..., tuple[Any, Pullback]] | None = None,
    *,
    fits: Callable[..., str | None] | None = None,
    converts: bool = False,
) -> Any:
    """Lift a function on arrays, which returns its value and its pullback, to Tensors.

    function  takes arrays (or numbers, or None) as positional and settings as keyword arguments;
              returns (value, pullback), or (several values as a tuple, pullback). The pullback
              takes one cotangent a value, None where nothing flows back, and returns a tuple with
              one gradient for each positional argument, None for those that have none
    fits      called with the arguments after an error: says what is required of them and the likely
              fix, or None where they fit
    converts  the value may be of another dtype or library than the arguments

    The operation gives arrays for arrays, Tensors if any argument is one. Settings may follow the
    arrays by position, and arrays may be named. Its `with_pullback` takes arrays and gives the
    value and the pullback, in which broadcasting is undone.

    The operation raises TypeError for arrays of two libraries or float types and for what is no
    array; errors of the library come with the shapes and dtypes of the arguments. The pullback
    raises TypeError for a result that is not one gradient an argument.
    """
    if function is None:
        return functools.partial(operation, fits=fits, converts=converts)
    form = _Form(function, converts)
    arity, asks_wanted = form.arity, form.asks_wanted
    plans: dict[int, _Plan] = {}

    def with_pullback(
        *arrays: Any, wanted: tuple[bool, ...] | None = None, **settings: Any
    ) -> tuple[Any, Pullback]:
        inputs = list(form.arrange(arrays, settings))
        _, dtype = form.examine(inputs)
        if wanted is None:
            wanted = tuple(map(backend.is_floating, inputs))
        wanted += (False,) * (arity - len(wanted))
        if asks_wanted:
            settings["wanted"] = wanted
        try:
            value, pull = function(*inputs, **settings)
            pull = plain(pull)
        except _ERRORS as error:
            raise _explained(error, this, fits, inputs, settings) from error
        value = form.check(value, dtype, inputs)
        while len(inputs) > len(arrays) and not backend.is_array(inputs[-1]):
            inputs.pop()  # a number given by name is a setting
        likes = [(x.shape, x.dtype) if want else None for x, want in zip(inputs, wanted)]  # noqa: B905
        return value, Fitted(this, pull, likes, max(arity, len(inputs)))

    def lifted(*inputs: Any, **settings: Any) -> Any:  # noqa: PLR0912, PLR0915  one way, in view
        if settings or len(inputs) > arity:
            inputs = form.arrange(inputs, settings)
        arrays: list[Any] = []
        parent: Any = None
        lifts = unlike = derives = False
        library = dtype = None
        wants, bit = 0, 1  # whose gradients are wanted: a bit an argument
        for x in inputs:
            kind = type(x)
            if kind is Tensor:
                lifts = True
                if x._node is not None:
                    parent = x._node
                    wants += bit
                x = x._data  # noqa: PLW2901
                kind = type(x)
            bit += bit
            arrays.append(x)
            if kind is library:
                if x.dtype is not dtype:
                    if id(dtype) in exact:
                        dtype = x.dtype
                    elif id(x.dtype) not in exact:
                        unlike = True
            elif library is None and kind in known:
                library, dtype = kind, x.dtype
            elif kind not in _NUMBERS:
                unlike, derives = True, derives or isinstance(x, Tensor)
        if unlike or library is None:
            if derives:
                return lifted(*map(_exactly, inputs), **settings)
            library, dtype = form.examine(arrays)
        blocks = open_blocks.get()
        if blocks and in_force(no_grad):
            wants = 0
        called = wants + bit  # the highest bit tells how many were given
        wanted, place = plans.get(called) or _plan(plans, called, max(len(inputs), arity))
        if asks_wanted:
            settings["wanted"] = wanted
        try:
            value, pull = function(*arrays, **settings) if settings else function(*arrays)
            if type(pull) is not FunctionType or pull.__defaults__ or pull.__kwdefaults__:
                pull = plain(pull)
        except _ERRORS as error:
            raise _explained(error, this, fits, arrays, settings) from error
        if type(value) is not library or value.dtype is not dtype:
            value = form.check(value, dtype, arrays, wants > 0)
            if backend.is_array(value) and not backend.is_floating(value):
                wants = 0  # no gradient flows through integers
        where = anomaly.in_values(this, arrays, settings, value) if blocks else None
        if not lifts:
            return value
        if wants:
            if place is None:
                parent = [x._node if type(x) is Tensor else None for x in inputs]
            made = _record(this, pull, parent, place, len(wanted), value, where)
        else:
            made = tuple(map(Tensor._made, value)) if type(value) is tuple else Tensor._made(value)
        return watched(this.__name__, made) if blocks else made

    def unary(x: Any = _ABSENT, /, *rest: Any, **settings: Any) -> Any:
        """The same, shorter, for what most calls are: one Tensor, recorded, and settings."""
        if type(x) is not Tensor or (parent := x._node) is None or open_blocks.get():
            return lifted(**settings) if x is _ABSENT else lifted(x, *rest, **settings)
        if settings or rest:
            form.settle(rest, settings)
        array = x._data
        dtype = array.dtype
        try:
            value, pull = function(array, **settings) if settings else function(array)
            if type(pull) is not FunctionType or pull.__defaults__ or pull.__kwdefaults__:
                pull = plain(pull)
        except _ERRORS as error:
            raise _explained(error, this, fits, [array], settings) from error
        if type(value) is not type(array) or value.dtype is not dtype:
            value = form.check(value, dtype, [array], recorded=True)
            if type(value) is tuple:
                return _record(this, pull, parent, 0, 1, value)
            if not backend.is_floating(value):
                return Tensor._made(value)  # no gradient flows through integers
            dtype = value.dtype
        # what _record does for one value, without the calls: the busiest lines of the engine
        node, y = Node(), _new_tensor(Tensor)
        node.operation, node.pull, node.order = this, pull, next(order)
        node.saved = checksums(pull) if pull.__closure__ else 0
        node.parents, node.place, node.number = parent, 0, 1
        shape = value.shape  # mostly that of the parent: then one tuple serves both
        node.shape, node.dtype = parent.shape if shape == parent.shape else shape, dtype
        node.hooks = node.gradient = node.where = None
        y._data, y._node = value, node
        return y

    this: Any = functools.wraps(function)(unary if arity == 1 and not asks_wanted else lifted)
    this.parameters, this.with_pullback, this.__signature__ = (
        form.parameters, with_pullback, form.signature
    )  # fmt: skip
    with_pullback.__name__ = function.__name__
    registry[f"{function.__module__}.{function.__name__}"] = this
    return this


def _plan(plans: dict[int, _Plan], called: int, number: int) -> _Plan:
    """Which gradients are wanted, and the place of the one where it is one alone."""
    wants = called - (1 << called.bit_length() - 1)
    wanted = tuple(bool(wants >> k & 1) for k in range(number))
    if len(plans) >= 1024:  # there are many for operations on any number of arrays
        plans.clear()
    plans[called] = plan = (wanted, wanted.index(True) if sum(wanted) == 1 else None)
    return plan


def _record(
    operation: Operation,
    pull: Pullback,
    parents: Any,
    place: int | None,
    number: int,
    value: Any,
    where: str | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The value, or several, as Tensors that know how they were made."""
    node = Node()
    node.operation, node.pull, node.order = operation, pull, next(order)
    node.parents, node.place, node.number = parents, place, number
    node.saved = checksums(pull, where is not None) if pull.__closure__ else 0
    node.hooks = node.gradient = None
    node.where = where
    if type(value) is tuple:
        node.shape, node.dtype = [x.shape for x in value], None
        return tuple(  # no gradient flows through integers
            Tensor._made(x, noted(operation, k, node, x) if backend.is_floating(x) else None)
            for k, x in enumerate(value)
        )
    node.shape, node.dtype = value.shape, value.dtype
    y = _new_tensor(Tensor)
    y._data, y._node = value, node
    return y


def _exactly(x: Any) -> Any:
    """A Tensor of a derived class as one of Tensor itself."""
    return Tensor._made(x._data, x._node) if isinstance(x, Tensor) else x


class _Form:
    """The arguments that an operation takes: arrays, then settings."""

    def __init__(self, function: Callable[..., Any], converts: bool) -> None:
        shown: Any = inspect.signature(function).parameters.values()
        self.name, self.converts = function.__name__, converts
        self.asks_wanted = any(p.name == "wanted" for p in shown)
        shown = [p for p in shown if p.name != "wanted"]
        self.optional = {p.name for p in shown if p.default is None}
        self.signature = inspect.Signature(shown)
        arrays = [p for p in shown if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in arrays)
        self.parameters = () if self.variadic else tuple(p.name for p in arrays)
        self.names = frozenset(self.parameters)
        self.arity = -1 if self.variadic else len(arrays)
        self.texts = {p.name for p in arrays if p.annotation in (str, "str")}
        self.settings = tuple(p.name for p in shown if p.kind is p.KEYWORD_ONLY)
        self.spreads = (
            bool(self.settings)
            and str(self.signature.parameters[self.settings[0]].annotation) == "tuple[int, ...]"
        )
        self._seen: dict[Any, tuple[Any, Any]] = {}

    def arrange(self, inputs: tuple[Any, ...], settings: dict[str, Any]) -> tuple[Any, ...]:
        """The arrays, in order, taken out of the settings if they were named there; settings that
        came by position are put in."""
        if not self.names.isdisjoint(settings):
            left = self.parameters[len(inputs) :]
            last = max((k for k, name in enumerate(left, 1) if name in settings), default=0)
            inputs = (*inputs, *(settings.pop(name, None) for name in left[:last]))
            if twice := self.names & settings.keys():
                raise self._refused(f"got {', '.join(sorted(twice))} twice")
        rest: tuple[Any, ...] = ()
        if not self.variadic:
            inputs, rest = inputs[: self.arity], inputs[self.arity :]
        elif inputs and isinstance(inputs[0], tuple | list):
            inputs, rest = tuple(inputs[0]), inputs[1:]
        self.settle(rest, settings)
        return inputs

    def settle(self, rest: tuple[Any, ...], settings: dict[str, Any]) -> None:
        """Put in the settings that came by position, and make plain numbers and arrays of all."""
        if self.settings and len(rest) == 1 and not settings and type(rest[0]) in _SETTINGS:
            settings[self.settings[0]] = rest[0]  # the usual, soon done
            return
        if settings and not _SETTINGS.issuperset(map(type, settings.values())):
            settings.update((name, self._plain(name, x)) for name, x in settings.items())
        if self.spreads and len(rest) > 1 and hasattr(rest[0], "__index__"):
            rest = (rest,)  # reshape(x, 2, 3) for reshape(x, (2, 3))
        if len(rest) > len(self.settings):
            raise self._refused(f"got {max(self.arity, 1) + len(rest)} arguments")
        for name, x in zip(self.settings, rest):  # noqa: B905  the first settings only
            if name in settings:
                raise self._refused(f"got {name} twice")
            settings[name] = x if type(x) in _SETTINGS else self._plain(name, x)

    def _plain(self, name: str, x: Any) -> Any:
        """A setting without a Tensor or a scalar of NumPy."""
        if isinstance(x, Tensor):
            if x.requires_grad and is_recording():
                raise TypeError(f"{self.name}: no gradient flows to {name}: detach() it")
            x = x._data
        if backend.is_integral(x) and not x.ndim:
            return operator.index(x)  # an array could change
        return x.item() if isinstance(x, backend.HostScalar) else x

    def _refused(self, why: str) -> TypeError:
        return TypeError(f"{self.name}{_shown(self.signature)} {why}")

    def examine(self, arrays: list[Any]) -> tuple[Any, Any]:
        """The type of the arrays, and the dtype of those of floats; NumPy's scalars become numbers.

        Arrays of two libraries or of two float types are a mistake, not a promotion.
        """
        key: list[Any] = []
        for k, x in enumerate(arrays):
            kind = type(x)
            key.append(kind)
            if kind in known:
                key.append(x.dtype)
            elif isinstance(x, backend.HostScalar):
                arrays[k] = x.item()
        seen = self._seen.get(tuple(key))
        if seen is None:
            seen = self._seen[tuple(key)] = self._common(arrays)
        return seen

    def _common(self, arrays: list[Any]) -> tuple[Any, Any]:
        first: Any = None
        floats: Any = None
        for k, x in enumerate(arrays):
            name = self.parameters[k] if k < len(self.parameters) else f"array {k}"
            if not backend.is_array(x):
                allowed = self.optional if x is None else self.texts if isinstance(x, str) else ()
                if not (isinstance(x, Number) or name in allowed):
                    kind = "None" if x is None else f"a {type(x).__name__}"
                    fix = ": make it one first" if isinstance(x, list | tuple) else ""
                    raise TypeError(f"{self.name}: {name} must be an array, not {kind}{fix}")
                continue
            if not (backend.is_floating(x) or backend.is_complex(x) or backend.is_exact(x)):
                raise TypeError(f"{self.name}: {_described(name, x)}: numbers are required")
            for other in (first, floats if backend.is_floating(x) else None):
                if other and (
                    backend.namespace(x) is not backend.namespace(other[1])
                    or (other is floats and x.dtype != other[1].dtype)
                ):
                    raise TypeError(
                        f"{self.name}: {_described(*other)}, {_described(name, x)}: convert one, "
                        "nothing is converted silently"
                    )
            if not backend.is_floating(x):
                exact[id(x.dtype)] = x.dtype
            first = first or (name, x)
            floats = floats or (backend.is_floating(x) and (name, x)) or None
        return first and type(first[1]), floats and floats[1].dtype

    def check(self, value: Any, dtype: Any, arrays: list[Any], recorded: bool = False) -> Any:
        """A value, or each of several, as an array of the float type that went in."""
        if isinstance(value, list):
            raise TypeError(f"{self.name} must return several values as a tuple, not as a list")
        if isinstance(value, tuple):
            return tuple(self.check(v, dtype, arrays, recorded) for v in value)
        value = backend.asarray(value)
        if recorded and backend.is_complex(value):
            raise TypeError(f"{self.name}: complex values have no gradient: use no_grad()")
        if value.dtype != dtype and not self.converts:
            _, floats = self.examine(arrays)
            if floats is not None and value.dtype != floats and backend.is_floating(value):
                raise TypeError(
                    f"{self.name}: {floats} went in and {value.dtype} came out: convert to "
                    f"{floats} what else takes part, integers too"
                )
        return value


def _explained(
    error: Exception,
    operation: Operation,
    fits: Callable[..., str | None] | None,
    arrays: Sequence[Any],
    settings: dict[str, Any],
) -> Exception:
    """The error of a library with what was given and, where it is known, what is required."""
    what: Any = None
    kinds = [type(error), *(kind for kind in _ERRORS if isinstance(error, kind))]
    within = bool(error.__traceback__ and error.__traceback__.tb_next)  # or by the call itself
    if not within and "unexpected keyword" in str(error):
        name = str(error).rpartition(" ")[2].strip("'")
        what = f"no setting {name} in {_shown(operation.__signature__)}"
    elif not within and "unpack" in str(error):
        what = f"{PAIR}: {error}"
    elif fits is not None:
        with contextlib.suppress(Exception):
            what = fits(*arrays, **{k: x for k, x in settings.items() if k != "wanted"})
    on_host = all(type(x) is backend.HostArray for x in arrays if backend.is_array(x))
    if type(error) is RuntimeError and not on_host:  # torch's word for shapes that do not fit
        kinds = [ValueError]
    if isinstance(error, AttributeError) and any(isinstance(x, Number) for x in arrays):
        what, kinds = what or "it needs arrays, not numbers", [TypeError]
    names = operation.parameters or [f"array {k}" for k in range(len(arrays))]
    places = {str(x.device) for x in arrays if backend.is_array(x)}
    given = ", ".join(
        _described(name, x) + (f" on {x.device}" if len(places) > 1 and backend.is_array(x) else "")
        for name, x in zip(names, arrays, strict=False)
        if x is not None
    )
    what = what or getattr(error, "what", str(error))  # of an operation inside this one
    text = f"{operation.__name__}: {what} ({given})"
    for kind in kinds:  # its own, unless that asks for more than a text
        with contextlib.suppress(Exception):
            explained: Any = kind(text)
            if str(explained) == text:
                explained.what = what
                return explained
    return error


def _shown(signature: inspect.Signature) -> inspect.Signature:
    """A signature without types, as a caller reads it."""
    return inspect.Signature([p.replace(annotation=p.empty) for p in signature.parameters.values()])


def _described(name: str, x: Any) -> str:
    """An argument by name, type, shape and dtype."""
    if backend.is_array(x):
        library = type(x).__module__.partition(".")[0]
        return f"{name} is {library}.{type(x).__name__} {tuple(x.shape)} of {x.dtype}"
    return f"{name} is {x!r}" if isinstance(x, Number | str) else f"{name} is a {type(x).__name__}"

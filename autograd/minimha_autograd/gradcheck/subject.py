"""The function under check, of Tensors or of arrays, as one of NumPy arrays on the host."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property
from numbers import Number
from typing import Any

import numpy as np

from .. import backend
from ..modes import no_grad, watch
from ..pullback import Pullback
from ..tensor import Tensor, array_of
from .error import GradcheckError
from .numeric import Loss, jiggled

Hosts = dict[int, np.ndarray]


class Subject:
    """The function under check, of Tensors or of arrays, as one of host arrays.

    It is only ever called with copies, so that the caller's arrays stay as they are. Parameters
    follow the inputs, as if they were such.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        inputs: tuple[Any, ...],
        names: Sequence[str] | None = None,
        parameters: Any = None,
    ) -> None:
        if isinstance(f, type) or not callable(f):
            what = f"the class {f.__name__}" if isinstance(f, type) else f"a {type(f).__name__}"
            raise TypeError(
                f"f is {what}: pass a function, an operation or a module, and its inputs after it"
            )
        named = _named_parameters(f, parameters)
        self.f, self.inputs, self.given = f, (*inputs, *named.values()), len(inputs)
        made_of = getattr(f, "func", f)  # what a partial was made of
        self.name = getattr(made_of, "__name__", type(made_of).__name__)
        own = _parameters(f, len(inputs)) if names is None else list(names)
        self.names = [*own, *(f"parameter {n}" if n in own else n for n in named)]
        if len(set(own)) < len(own):
            raise ValueError(f"names: {', '.join(own)}: each can be there once")
        self.on_tensors = any(isinstance(x, Tensor) for x in self.inputs)
        self.arrays = [array_of(x) for x in self.inputs]
        self.checked = [
            k
            for k, x in enumerate(self.inputs)
            if isinstance(x, Tensor) == self.on_tensors and backend.is_floating(self.arrays[k])
        ]
        self.takes_tap = "tap" in _signature(f)
        self.needs_tap = self.takes_tap and _signature(f)["tap"].default is inspect.Parameter.empty
        self.can_locate = self.takes_tap or self.on_tensors
        self.misshapen: dict[int, np.ndarray] = {}
        self.bent: dict[str, str] = {}  # whose gradient is not linear, and how that shows

    def require_floats(self) -> None:
        """Raise TypeError unless there is something to check, and all of it can be."""
        for k in self.checked:
            if str(self.arrays[k].dtype).rpartition(".")[2] not in ("float64", "float32"):
                raise TypeError(
                    f"gradcheck of {self.name}: {self.names[k]} is {self.arrays[k].dtype}; only "
                    "float64 and float32 can be checked"
                )
        if not self.checked:
            kinds = ", ".join(
                f"{type(x).__name__} of {x.dtype}" if backend.is_array(x) else type(x).__name__
                for x in self.arrays
            )
            raise TypeError(
                f"gradcheck of {self.name}: none of the inputs is a Tensor or array of real "
                f"floating-point numbers ({kinds})"
            )

    def differentiate(self, rng: np.random.Generator) -> None:
        """Draw random cotangents; find the gradients by the pullback, and how noisy they are.

        Raises GradcheckError where that is not a question of numbers: values that are not arrays or
        not finite, that differ from call to call, arrays changed in place, gradients of the wrong
        kind, or that differ when the pullback is called again.
        """
        self.originals = {k: backend.to_numpy(self.arrays[k]) for k in self.checked}
        values = self.evaluate(self.originals)
        self._refuse_unusable(values)
        self.cotangents = [rng.standard_normal(y.shape).astype(y.dtype) for y in values]
        self.size = _norm([c * y for c, y in zip(self.cotangents, values, strict=True)])
        self.gradients, _ = self._pull(self.originals, self.cotangents, values)
        self.noise = dict.fromkeys(self.checked, 0.0)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of f were seen on the first call
            far = dict.fromkeys(self.checked, 0.0)
            for nearness in (1, 1 / 3, 1 / 9, 1 / 27):
                self._listen_near(rng)
                far |= {k: max(far[k], x) for k, x in self._rounding_at(nearness, rng).items()}
            lost = self._lost_in_float32()
            for k, x in far.items():
                most = max(x, 1e-3 / 30 * float(abs(self.gradients[k]).max(initial=0.0)))
                self._hear(k, np.asarray(min(0.1 * lost[k], most) if k in lost else x))

    def _listen_near(self, rng: np.random.Generator) -> None:
        """Add to the noise what moves with the last places, and where all is rounded anew."""
        eps = max((float(np.finfo(c.dtype).eps) for c in self.cotangents), default=0.0)
        factor = 1 + 4096 * eps * rng.random()
        cotangents = [np.asarray(c * factor, dtype=c.dtype) for c in jiggled(self.cotangents, rng)]
        again, _ = self._pull(self._jiggled(rng), cotangents)
        for k in again.keys() - self.misshapen.keys():
            self._hear(k, again[k] / factor - self.gradients[k])

    def _rounding_at(self, nearness: float, rng: np.random.Generator) -> dict[int, float]:
        """How far gradients are rounded elsewhere, nearer to zero.

        The gradient of a saturated function, such as a softmax of large scores, is what is left
        when terms of the size that it has elsewhere cancel, and is rounded like these.
        """
        away = {
            k: (x * rng.uniform(0.8, 1.25, x.shape) * nearness).astype(x.dtype)
            for k, x in self.originals.items()
        }
        try:
            elsewhere, _ = self._pull(away, self.cotangents)
        except Exception:  # whatever f raises, it was not asked about these inputs
            return {}
        return {
            k: float(np.finfo(dx.dtype).eps * abs(dx[np.isfinite(dx)]).max(initial=0.0))
            for k, dx in elsewhere.items()
            if k not in self.misshapen
        }

    def _lost_in_float32(self) -> dict[int, float]:
        """How far gradients in float32 are from those of the same pullback in float64, where f can
        be evaluated in it: their rounding or, if it is a share of them, a mistake in float32."""
        if all(dx.dtype == np.float64 for dx in self.gradients.values()):
            return {}
        try:
            cotangents = [c.astype("float64") for c in self.cotangents]
            exact, _ = self._pull(self._hosts("float64"), cotangents)
        except Exception:  # whatever f raises, it does not take float64
            return {}
        return {
            k: float(abs(dx - self.gradients[k]).max(initial=0.0))
            for k, dx in exact.items()
            if k not in self.misshapen
        }

    def _hear(self, k: int, change: np.ndarray) -> None:
        heard = abs(change[np.isfinite(change)]).max(initial=0.0)
        self.noise[k] = max(self.noise[k], float(heard))

    def _jiggled(self, rng: np.random.Generator) -> Hosts:
        moved = jiggled(list(self.originals.values()), rng)
        return dict(zip(self.originals, moved, strict=True))

    def inner_gradients(self) -> dict[str, np.ndarray]:
        """The gradients of the intermediates, as far as the function tells them."""
        return self._pull(self.originals, self.cotangents, tap=Tap())[1]

    def _pull(
        self,
        hosts: Hosts,
        cotangents: list[np.ndarray],
        expected: list[np.ndarray] | None = None,
        tap: Tap | None = None,
    ) -> tuple[Hosts, dict[str, np.ndarray]]:
        """The gradients of the checked inputs and of the intermediates, on the host.

        expected  the values, on the first call, which is the one that looks for mischief
        """
        inputs = self._copies(hosts)
        if self.on_tensors:
            for k in self.checked:
                inputs[k] = Tensor(inputs[k].data, requires_grad=True)
        values, pullback = self._call(inputs, tap)
        first = [np.array(backend.to_numpy(y)) for y in values]
        if expected and not _equal(first, expected):
            raise self._error(
                "two calls with the same inputs gave different values: does it draw random "
                "numbers? Draw them before, or from a generator that is made anew in each call"
            )
        given = [backend.like(c, y) for c, y in zip(cotangents, values, strict=True)]
        found, inner = self._sorted(pullback(*given), hosts)
        for k, host in hosts.items():
            if not np.array_equal(backend.to_numpy(array_of(inputs[k])), host, equal_nan=True):
                raise self._error(f"{self.names[k]} was changed in place")
        if not _equal(map(backend.to_numpy, given), cotangents):
            raise self._error("the pullback changed its cotangent in place")
        gradients = {k: np.array(dx) for k, dx in found.items()}  # to keep, whatever comes
        if expected:
            self._call_again(pullback, given, values, gradients, found)
        if tap is not None and self.on_tensors:
            inner = {
                name: np.zeros(x.shape) if x.grad is None else np.array(backend.to_numpy(x.grad))
                for name, x in tap.arrived.items()
                if isinstance(x, Tensor) and x.requires_grad
            }
        return gradients, inner

    def _call_again(
        self,
        pullback: Pullback,
        given: list[Any],
        values: list[Any],
        gradients: Hosts,
        found: Hosts,
    ) -> None:
        """Look for what is right on the first call only.

        gradients  copies of what the first call found
        """
        hosts = self.originals
        first = [np.array(backend.to_numpy(y)) for y in values]
        again, _ = self._sorted(pullback(*given), hosts)
        for k in gradients.keys() & again.keys():
            if not np.array_equal(gradients[k], again[k], equal_nan=True):
                raise self._error(
                    f"called twice with one cotangent, the pullback gave two gradients of "
                    f"{self.names[k]}: does it draw random numbers, add to an array that it "
                    "keeps, or change what it saved?"
                )
        self._look_whether_linear(gradients, pullback, given, values, hosts)
        for k, dx in gradients.items():
            if not np.array_equal(dx, found[k], equal_nan=True):
                raise self._error(
                    f"a second call of the pullback changed the gradient of {self.names[k]} "
                    "that the first had returned: it hands out the same array each time"
                )
        self.evaluate(self._jiggled(np.random.default_rng(0)))
        if not _equal(map(backend.to_numpy, values), first):
            raise self._error(
                "a second call changed the value that the first had returned: it hands out the "
                "same array each time"
            )

    def _look_whether_linear(
        self, gradients: Hosts, pullback: Pullback, given: list[Any], values: Any, hosts: Hosts
    ) -> None:
        """−4 times the cotangent gives −4 times the gradient, to the bit; note it where not."""
        other = [
            backend.like(-4 * backend.to_numpy(c), y) for c, y in zip(given, values, strict=True)
        ]
        found, _ = self._sorted(pullback(*other), hosts)
        for k in gradients.keys() - self.misshapen.keys():
            dx = gradients[k]
            with np.errstate(all="ignore"):
                off = abs(found[k] + 4 * dx).max(initial=0.0)
                allowed = abs(dx).max(initial=0.0) * float(np.sqrt(np.finfo(dx.dtype).eps))
            if dx.any() and np.array_equal(found[k], dx):
                self.bent[self.names[k]] = (
                    "is the same whatever the cotangent is: the pullback has to multiply by its "
                    "argument, the gradient of the result"
                )
            elif off > allowed:
                self.bent[self.names[k]] = (
                    "is not −4 times what it was for −4 times the cotangent: a pullback is linear "
                    "in its argument. Does it look at its sign or size?"
                )

    def _sorted(self, gradients: Any, hosts: Hosts) -> tuple[Hosts, dict[str, np.ndarray]]:
        """What a pullback returned, by input and, where it tells them, by intermediate."""
        inner = {}
        if isinstance(gradients, tuple) and gradients and isinstance(gradients[-1], dict):
            *rest, told = gradients
            gradients = tuple(rest)
            inner = {
                str(name): np.array(self._host(dx, name))
                for name, dx in told.items()
                if dx is not None
            }
        if not isinstance(gradients, tuple):
            one = "; (dx,), with a comma, is a tuple of one" if len(self.checked) == 1 else ""
            raise self._error(
                f"the pullback must return a tuple of gradients, not {_kind(gradients)}"
                f"{one if gradients is not None else ''}"
            )
        if len(gradients) == len(self.inputs):
            gradients = tuple(gradients[k] for k in self.checked)
        if len(gradients) != len(self.checked):
            raise self._error(
                f"the pullback returned {len(gradients)} gradient{'s' * (len(gradients) != 1)} for "
                f"{len(self.checked)} input{'s' * (len(self.checked) != 1)} that can have one"
            )
        pairs = zip(self.checked, gradients, strict=True)
        return {k: self._as_gradient(dx, hosts[k], k) for k, dx in pairs}, inner

    def _as_gradient(self, dx: Any, x: np.ndarray, k: int) -> np.ndarray:
        """The gradient dx of x on the host; None, where nothing arrived, is zero."""
        name = self.names[k]
        if dx is None:
            return np.zeros_like(x)
        host = self._host(dx, name)
        if host.shape != x.shape:
            self.misshapen[k] = host  # which has a likely cause
        elif host.dtype != x.dtype:
            raise self._error(f"the gradient of {name} has dtype {host.dtype}, the input {x.dtype}")
        return host

    def _host(self, dx: Any, name: str) -> np.ndarray:
        """What a pullback returned as the gradient of this, on the host."""
        if not (backend.is_array(dx) or isinstance(dx, Number)):
            kind = type(dx).__name__
            raise self._error(f"the gradient of {name} is a {kind}: a pullback returns arrays")
        return backend.to_numpy(backend.asarray(dx))

    def _copies(self, hosts: Hosts) -> list[Any]:
        """The inputs, the checked ones made anew from host arrays."""
        inputs = list(self.inputs)
        for k, host in hosts.items():
            x = backend.like(host, self.arrays[k])
            inputs[k] = Tensor(x) if self.on_tensors else x
        return inputs

    def _call(self, inputs: list[Any], tap: Tap | None = None) -> tuple[list[Any], Pullback]:
        """The values of f as arrays, and the pullback to its inputs."""
        settings = {"tap": tap or Tap()} if self.takes_tap and (tap or self.needs_tap) else {}
        if self.on_tensors:
            watching = tap is not None and not self.takes_tap
            with self._in_place(inputs), watch(tap) if watching and tap else nullcontext():
                outputs = _tuple(self.f(*inputs[: self.given], **settings))
            if not all(isinstance(y, Tensor) for y in outputs):
                kinds = ", ".join(type(y).__name__ for y in outputs)
                raise self._error(f"a function of Tensors must return Tensors, not {kinds}")
            if tap is not None:
                tap.leave_out(outputs)

            def pullback(*cotangents: Any) -> tuple[Any, ...]:
                for k in self.checked:
                    inputs[k].grad = None
                with _left_alone(outputs, before=inputs[self.checked[0]]):
                    for y, dy in zip(outputs, cotangents, strict=True):
                        if y.requires_grad:
                            self._backward(y, dy)
                return tuple(inputs[k].grad for k in self.checked)

            return [y.data for y in outputs], pullback
        call = getattr(self.f, "with_pullback", self.f)
        result = call(*inputs, **settings)
        if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
            tensors = "; to check a function of Tensors, pass Tensors"
            raise self._error(
                f"a function of arrays must return (value, pullback), not {_kind(result)}"
                f"{'' if result is None or isinstance(result, tuple) else tensors}"
            )
        if isinstance(result[0], list):
            raise self._error("several values are returned as a tuple, not a list")
        return [backend.asarray(y) for y in _tuple(result[0])], result[1]

    def _backward(self, y: Tensor, dy: Any) -> None:
        """y.backward(dy), with what the tape says of a pullback as an error of the check."""
        try:
            y.backward(dy, retain_graph=True)
        except (TypeError, ValueError) as error:
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            if frame.f_globals.get("__package__") != backend.__package__:
                raise  # it was raised within the pullback
            raise self._error(str(error)) from None

    @contextmanager
    def _in_place(self, inputs: list[Any]) -> Iterator[None]:
        """Within, the parameters have the data, and the place on the tape, of these Tensors."""
        pairs = list(zip(self.inputs[self.given :], inputs[self.given :], strict=True))
        before = [(p._data, p._node) for p, _ in pairs]
        for p, x in pairs:
            p._data, p._node = x._data, x._node
        try:
            yield
        finally:
            for (p, _), (data, node) in zip(pairs, before, strict=True):
                p._data, p._node = data, node

    def _refuse_unusable(self, hosts: list[np.ndarray]) -> None:
        if not all(y.dtype.kind == "f" for y in hosts):
            raise self._error(f"the values have dtype {', '.join(str(y.dtype) for y in hosts)}")
        if not all(np.isfinite(y).all() for y in hosts):
            raise self._error(
                "the value is NaN or infinite at these inputs: nothing can be checked"
            )

    def _error(self, message: str) -> GradcheckError:
        return GradcheckError(f"{self.name}: {message}")

    def loss(
        self,
        at: int | str,
        held: Mapping[str, np.ndarray] | None = None,
        seen: tuple[int | str, np.ndarray] | None = None,
    ) -> Loss:
        """L = Σ c · f as a function of one input, or of the intermediate of that name.

        held  intermediates that stay at these values, whatever they are computed from
        seen  an intermediate, or the number of a result, and its cotangent: that alone counts
        """

        def loss(x: np.ndarray) -> Any:
            hosts = {j: y.astype(x.dtype, copy=False) for j, y in self.hosts.items()}
            inner = {n: y.astype(x.dtype, copy=False) for n, y in (held or {}).items()}
            if isinstance(at, int):
                hosts[at] = x
            else:
                inner[at] = x
            tap = Tap(inner) if inner or seen else None
            with np.errstate(all="ignore"):  # a step may leave the domain
                pairs = list(zip(self.cotangents, self.evaluate(hosts, tap), strict=True))
                if seen and tap:
                    name, c = seen
                    y = pairs[name][1] if isinstance(name, int) else tap.host(name)
                    pairs = [(c, np.where(np.isfinite(y), y, 0))]  # a hidden score is −∞
                return sum(
                    np.sum(np.multiply(c, y, dtype=np.result_type(y.dtype, np.float64)))
                    for c, y in pairs
                )

        return loss

    @cached_property
    def precision(self) -> str:
        """That of the numeric side: float64 if f can be evaluated in it, else float32."""
        try:
            outputs = self.evaluate(self._hosts("float64"))
        except Exception:  # whatever f raises, it does not take float64
            return "float32"
        return "float64" if all(y.dtype == np.float64 for y in outputs) else "float32"

    @property
    def rounding(self) -> float:
        """About how far L is rounded, on the numeric side."""
        return float(np.finfo(self.precision).eps) * self.size

    @cached_property
    def hosts(self) -> Hosts:
        """The checked inputs on the host, in the precision of the numeric side."""
        return self._hosts(self.precision)

    def _hosts(self, dtype: str) -> Hosts:
        return {k: backend.to_numpy(self.arrays[k]).astype(dtype) for k in self.checked}

    def evaluate(self, hosts: Hosts, tap: Tap | None = None) -> list[np.ndarray]:
        """The values of f, on the host, with the checked inputs replaced."""
        with no_grad():  # complex values have no place on the tape
            return [backend.to_numpy(y) for y in self._call(self._copies(hosts), tap)[0]]


class Tap:
    """What a function hands its intermediates to: it sees them, and may put others in their place.

    replaced  host arrays by name. The second intermediate of a name is "name 2"
    arrived   the intermediates as they came
    """

    def __init__(self, replaced: Mapping[str, np.ndarray] | None = None) -> None:
        self.replaced, self.arrived, self._seen = replaced or {}, dict[str, Any](), Counter[str]()

    def __call__(self, name: str, x: Any) -> Any:
        name = str(name)
        self._seen[name] += 1
        number = self._seen[name]
        name = name if number == 1 else f"{name} {number}"
        self.arrived[name] = x
        if name not in self.replaced:
            return x
        other = backend.like(self.replaced[name], array_of(x))
        return Tensor(other) if isinstance(x, Tensor) else other

    def leave_out(self, outputs: tuple[Any, ...]) -> None:
        """Forget the intermediates that are the result."""
        known = {id(y) for y in outputs}
        self.arrived = {name: x for name, x in self.arrived.items() if id(x) not in known}

    def host(self, name: str) -> np.ndarray:
        """An intermediate on the host."""
        return np.array(backend.to_numpy(array_of(self.arrived[name])))

    def hosts(self) -> dict[str, np.ndarray]:
        """The intermediates of floating-point numbers, on the host."""
        arrived = self.arrived.items()
        return {n: self.host(n) for n, x in arrived if backend.is_floating(array_of(x))}


@contextmanager
def _left_alone(outputs: tuple[Tensor, ...], before: Tensor) -> Iterator[None]:
    """Within, backward() reaches Tensors older than this one, such as parameters that f closes
    over; afterwards they have the gradients that they had."""
    found: dict[int, Any] = {}
    todo = [y._node for y in outputs if y._node is not None]
    while todo:
        node = todo.pop()
        if node.order not in found:
            found[node.order] = node
            todo += node.arguments
    first = before._node.order if before._node is not None else 0
    older = [(node, node.gradient) for node in found.values() if node.order > first]
    for node, _ in older:
        node.gradient = None
    try:
        yield
    finally:
        for node, gradient in older:
            node.gradient = gradient


def _named_parameters(f: Callable[..., Any], given: Any) -> dict[str, Tensor]:
    """Parameters by name: of a module, f if none is given, or as they are given."""
    of = f if given is None else given
    named = getattr(of, "named_parameters", None)
    if named is not None:
        return dict(named())
    if of is not given:
        return {}
    if not (isinstance(given, Mapping) and all(isinstance(p, Tensor) for p in given.values())):
        kind = type(given).__name__
        raise TypeError(f"parameters must be Tensors by name, or a module, not this {kind}")
    return dict(given)


def _signature(f: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(f).parameters
    except (TypeError, ValueError):
        return {}


def _parameters(f: Callable[..., Any], count: int) -> list[str]:
    """The names of the first parameters of f, as far as it tells them."""
    names = [
        p.name
        for p in _signature(f).values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return [names[k] if k < len(names) else f"input {k}" for k in range(count)]


def _kind(x: Any) -> str:
    """What was returned in place of what should have been."""
    if x is None:
        return "None: is a return missing?"
    kind = f"a {type(x).__name__}"
    return f"{kind} of {', '.join(type(y).__name__ for y in x)}" if isinstance(x, tuple) else kind


def _tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def _equal(some: Any, others: Any) -> bool:
    return all(map(np.array_equal, some, others))


def _norm(arrays: list[np.ndarray]) -> float:
    """The Euclidean norm of all entries together."""
    flat = np.concatenate([np.zeros(1), *(x.ravel() for x in arrays)])
    largest = float(abs(flat).max())  # which may be too large to square
    return largest * float(np.linalg.norm(flat / (largest or 1.0)))

"""Optimisers: from gradients to better parameters; decay groups, clipping, and a schedule."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from minimha_autograd import Tensor, backend, half
from minimha_autograd.backend import Array, HostArray, namespace

from ..functional.implementations import device_kernel, kernel
from .module import Module

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]  # or groups of Tensors
State = dict[str, Any]
"""The state of one parameter: arrays of its shape, and counters."""


class Optimiser:
    """The base of all optimisers: groups of parameters, their settings, and their states.

    A subclass defines `start` and `update`.

    parameters  Tensors that require a gradient; or groups, dictionaries with such Tensors as
                "params" and settings of their own: {"params": biases, "weight_decay": 0.0}
    lr          learning rate, an attribute that may be changed between steps; a group with an "lr"
                of its own uses that instead
    settings    the other settings of the subclass, such as weight_decay, for groups without their
                own

    A step skips parameters whose .grad is None. A tied parameter is updated once.

    16-bit parameters and their states are updated in float32: the square of a gradient may be too
    large or too small for float16, and many steps are smaller than the distance to the next 16-bit
    number. So each has a master copy in float32, which the steps update; p.data is the master copy,
    rounded. Entries of p.data that you change yourself replace those of the master copy.
    Source: Micikevicius et al., "Mixed Precision Training" (2018), section 3.1.
    """

    def __init__(self, parameters: Parameters, lr: float, **settings: Any) -> None:
        self.lr = lr
        self.settings = settings
        self.groups = _groups(parameters, {"lr", *settings})
        self.parameters: list[Tensor] = [p for group in self.groups for p in group["params"]]

        # For 16-bit parameters the states are float32, and so are the master copies.
        self._states = {p: self.start(half.widened(p.data)) for p in self.parameters}
        self._masters: dict[Tensor, Array] = {}
        _keep_freed_memory()

    def start(self, p: Array) -> State:
        """The state of a parameter p before its first step, such as arrays of zeros."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        """Let a subclass or a mixin override `update` alone: its `_update_all` then calls `update`
        for each parameter, even if a base class updates all parameters at once."""
        methods = {"update", "_update_all"}

        # The nearest class that defines either: if only `update`, an inherited `_update_all` is
        # that of another optimiser.
        changing = next(c for c in cls.__mro__ if vars(c).keys() & methods)
        if "_update_all" not in vars(changing):
            cls._update_all = Optimiser._update_all  # type: ignore[method-assign]

    def update(
        self,
        p: Array,
        g: Array,
        state: State,
        settings: Mapping[str, Any],
    ) -> Array:
        """The next value of a parameter p with gradient g. Changes the state, but not p. settings
        are those for p, such as "lr"."""
        raise NotImplementedError

    def _update_all(
        self,
        ps: list[Array],
        gs: list[Array],
        states: list[State],
        settings: Mapping[str, Any],
    ) -> list[Array]:
        """The next values of several parameters `ps` with the gradients `gs`, all with the same
        settings; by default from a call of `update` for each. Changes their `states`, which are in
        the same order."""
        return [self.update(*one, settings) for one in zip(ps, gs, states, strict=True)]

    def step(self) -> None:
        """Update every parameter once, by its .grad."""
        for group in self.groups:
            # Later entries replace earlier ones: a group's own settings come last.
            settings = {"lr": self.lr, **self.settings, **group}

            # A scalar of NumPy has a dtype, which could widen the parameters.
            settings = {name: backend.number(value) for name, value in settings.items()}

            params = [p for p in group["params"] if p.grad is not None]
            for some in _in_steps(params):
                self._step(some, settings)

    def _step(self, params: list[Tensor], settings: Mapping[str, Any]) -> None:
        """Update several parameters at once, all with the same settings."""
        values = []
        for p in params:
            value = p.data
            if backend.is_half(value):
                value = self._master(p)  # float32
            values.append(value)
        gradients = [half.widened(p.grad) for p in params]  # float32 if p has 16 bits
        states = [self._states[p] for p in params]

        news = self._update_all(values, gradients, states, settings)
        for p, new in zip(params, news, strict=True):
            if not backend.is_half(p.data):
                p.data = new
                continue

            # The next step begins with the exact value, not with the rounded one.
            self._masters[p] = new
            p.data = half.rounded(new, p.dtype)

    def _master(self, p: Tensor) -> Array:
        """The float32 master copy of a 16-bit parameter, with the entries of p.data that were
        changed since the last step."""
        exact = half.widened(p.data)  # float32
        master = self._masters.get(p)
        if master is None:  # before the first step
            return exact

        # An entry that is not the master's, rounded, was set by the user.
        xp = namespace(exact)
        same = half.rounded(master, p.dtype) == p.data
        return xp.where(same, master, exact)

    def zero_grad(self) -> None:
        """Set the gradients to None."""
        for p in self.parameters:
            p.grad = None

    def state(self) -> dict[str, HostArray]:
        """Copies of the states of all parameters, on the host: "0.m" is m of the first parameter.
        The state of a 16-bit parameter includes its "master" copy.

        The settings are not included.
        """
        found: dict[str, HostArray] = {}
        for k, p in enumerate(self.parameters):
            state = dict(self._states[p])
            if backend.is_half(p.data):
                state["master"] = self._master(p)

            # A counter becomes an array without axes, so that all entries can be stored alike.
            for name, x in state.items():
                array = backend.to_numpy(backend.asarray(x))
                found[f"{k}.{name}"] = array.copy()  # to_numpy may return x itself
        return found

    def set_state(self, arrays: Mapping[str, Any]) -> None:
        """Continue from the state that `state` returned.

        Raises ValueError if entries are missing, extra, or of another shape or dtype. The message
        names all of them, and the optimiser is not changed.
        """
        wrong = self._misfits(arrays)
        if wrong:
            raise ValueError("the state does not fit the optimiser: " + "; ".join(wrong))

        # Everything fits, so nothing below can fail halfway.
        for k, p in enumerate(self.parameters):
            state = self._states[p]
            for name, old in state.items():
                new = arrays[f"{k}.{name}"]
                if isinstance(old, int):  # a counter
                    state[name] = int(new)
                else:
                    state[name] = backend.like(new, p.data)  # on the device of p
            if backend.is_half(p.data):
                self._masters[p] = backend.like(arrays[f"{k}.master"], p.data)

    def _misfits(self, arrays: Mapping[str, Any]) -> list[str]:
        """What prevents these arrays from being the state of this optimiser: a phrase for each
        wrong entry."""
        wanted = {name: _kind(x) for name, x in self.state().items()}
        given = {name: _kind(x) for name, x in arrays.items()}
        missing = [f"{name} is missing" for name in wanted if name not in given]
        extra = [f"{name} is extra" for name in given if name not in wanted]
        others = [
            f"{name} is {given[name]}, but must be {kind}"
            for name, kind in wanted.items()
            if name in given and given[name] != kind
        ]
        return missing + extra + others


def _groups(parameters: Parameters, known: set[str]) -> list[dict[str, Any]]:
    """The groups, dictionaries that each have a list of their parameters as "params": a single
    group if parameters are Tensors.

    known  the settings that a group may have

    Raises TypeError for anything but a list of Tensors or groups and for unknown settings,
    ValueError for a parameter in two groups.
    """
    if isinstance(parameters, Module):
        raise TypeError("parameters is a list of Tensors: write model.parameters()")
    if isinstance(parameters, Tensor):
        raise TypeError("parameters is a list of Tensors: write [tensor]")

    # Tensors alone are a group without settings.
    groups: list[Any] = list(parameters)
    if not groups or not isinstance(groups[0], dict):
        groups = [{"params": groups}]

    seen: set[Tensor] = set()
    made = []
    for group in groups:
        unknown = group.keys() - known - {"params"}
        if unknown:
            raise TypeError(
                f"a group has no setting {', '.join(sorted(unknown))}: "
                f"there are {', '.join(sorted(known))}"
            )

        params = list(group["params"])
        for p in params:
            if not isinstance(p, Tensor):
                raise TypeError(f"parameters must be Tensors, not {backend.described(p)}")

        # Without repetitions: a tied parameter is updated once.
        params = list(dict.fromkeys(params))

        # Two groups would update a parameter twice in one step.
        if not seen.isdisjoint(params):
            raise ValueError("a parameter is in two groups: each may be in one only")
        seen.update(params)
        made.append({**group, "params": params})
    return made


_TOGETHER = 2**20
"""The largest number of entries, all in all, of parameters that are updated together. It limits the
memory for their old values, which are freed only after the update."""


def _in_steps(params: list[Tensor]) -> list[list[Tensor]]:
    """Divide the parameters into lists. Those of a list are updated together: all in a single list
    for CuPy, otherwise at most `_TOGETHER` entries, unless one parameter alone has more."""
    # On a GPU, few kernels update all parameters at once.
    if params and backend.on_cupy(params[0].data):
        return [params]

    steps: list[list[Tensor]] = []
    entries = _TOGETHER  # as if a list were full: the first parameter begins a new one
    for p in params:
        size = math.prod(p.shape)
        if entries + size > _TOGETHER:
            steps.append([])
            entries = 0
        steps[-1].append(p)
        entries += size
    return steps


def _kind(x: Any) -> str:
    """Describe x in a message: an array by its dtype and shape, anything else by its type."""
    if not backend.is_array(x):
        return backend.described(x)
    return f"{x.dtype} {tuple(x.shape)}"


class SGD(Optimiser):
    """Stochastic gradient descent with momentum.

        g ← g + weight_decay · p,   b ← momentum · b + g,   p ← p − lr · b

    p is a parameter, g its gradient, and b, at first 0, the sum of past gradients, each multiplied
    by `momentum` at every later step. The other arguments are those of `Optimiser`.
    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning"
    (2013), in PyTorch's form: lr multiplies b, not g, so a new lr also applies to past gradients.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay)

    def start(self, p: Array) -> State:
        # A product with 0 has the dtype and the device of p.
        return {"b": 0.0 * p}

    def update(
        self,
        p: Array,
        g: Array,
        state: State,
        settings: Mapping[str, Any],
    ) -> Array:
        # The decay is the gradient of ½ weight_decay · Σ p².
        g = g + settings["weight_decay"] * p
        b = settings["momentum"] * state["b"] + g
        state["b"] = b
        return p - settings["lr"] * b


class Adam(Optimiser):
    """Adam: the mean of recent gradients, divided by their typical size.

        g ← g + weight_decay · p
        m ← β₁ m + (1 − β₁) g          v ← β₂ v + (1 − β₂) g²
        p ← p − lr · m̂ / (√v̂ + eps),   m̂ = m / (1 − β₁ᵗ),   v̂ = v / (1 − β₂ᵗ)

    p is a parameter and g its gradient; m and v start at 0; betas are β₁ and β₂; t counts the steps
    of each parameter. Without decay, a positive factor on all gradients hardly changes a step,
    unless they are near eps or their squares overflow. The decay passes through m and v: see
    `AdamW`. The other arguments are those of `Optimiser`.
    Source: Kingma and Ba, "Adam" (2015), algorithm 1.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)
        self._size = sum(math.prod(p.shape) for p in self.parameters)  # of the model, in entries

    def start(self, p: Array) -> State:
        # m̂ and v̂ correct for the zeros at the start.
        return {"t": 0, "m": 0.0 * p, "v": 0.0 * p}

    def update(
        self,
        p: Array,
        g: Array,
        state: State,
        settings: Mapping[str, Any],
    ) -> Array:
        (p,) = self._updated([p], [g], [state], settings)
        return p

    def _update_all(
        self,
        ps: list[Array],
        gs: list[Array],
        states: list[State],
        settings: Mapping[str, Any],
    ) -> list[Array]:
        return self._updated(ps, gs, states, settings)

    def _updated(
        self,
        ps: list[Array],
        gs: list[Array],
        states: list[State],
        settings: Mapping[str, Any],
    ) -> list[Array]:
        """The next values of parameters; the arguments are those of `_update_all`. `AdamW`
        overrides this method, to decay in another way, and inherits all others."""
        # The decay is the gradient of ½ weight_decay · Σ p², and part of g.
        if settings["weight_decay"]:
            gs = [g + settings["weight_decay"] * p for p, g in zip(ps, gs, strict=True)]
        return self._adam_steps(ps, gs, states, settings, decay=1.0)

    def _adam_steps(
        self,
        ps: list[Array],
        gs: list[Array],
        states: list[State],
        settings: Mapping[str, Any],
        decay: float,
    ) -> list[Array]:
        """The next value of each parameter p, decay · p − lr · m̂ / (√v̂ + eps), where `decay` is a
        factor and the other letters are those of `Adam`. Updates m, v and t in the states. ps, gs
        and states are the parameters, their gradients and their states, in the same order."""
        # Parameters in the same place, of the same dtype and with the same t are updated together.
        alike: dict[Any, list[int]] = {}
        for k, p in enumerate(ps):
            states[k]["t"] += 1
            key = backend.place(p), p.dtype, states[k]["t"]
            alike.setdefault(key, []).append(k)

        news = list(ps)  # each entry is replaced below
        beta1, beta2 = settings["betas"]
        for ((kind, _), _, t), members in alike.items():
            # With c = √(1 − β₂ᵗ), m̂ / (√v̂ + eps) is c m̂ / (√v + c eps): only numbers are corrected.
            correction = math.sqrt(1 - beta2**t)  # c
            rate = settings["lr"] * correction / (1 - beta1**t)
            eps = settings["eps"] * correction
            numbers = (beta1, beta2), decay, rate, eps

            given = []  # (p, g, m, v) each
            for k in members:
                state = states[k]
                given.append((ps[k], gs[k], state["m"], state["v"]))

            # A kernel reads and writes each array once. On the host, small models use none.
            if kind is HostArray:
                fast = kernel("adamw", self._size)
            else:
                fast = device_kernel("adamw", ps[members[0]])
            moved = None
            if fast:
                moved = fast(given, *numbers)
            if moved is None:  # no kernel, or it declined
                moved = [_adamw(*arrays, *numbers) for arrays in given]

            for k, (new, m, v) in zip(members, moved, strict=True):
                news[k] = new
                states[k]["m"] = m
                states[k]["v"] = v
        return news


def _adamw(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    betas: Any,
    decay: float,
    rate: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """The next p, m and v, where rate and eps already contain the corrections of m̂ and v̂:

        m ← β₁ m + (1 − β₁) g,  v ← β₂ v + (1 − β₂) g²,  p ← decay · p − rate · m / (√v + eps)

    p is a parameter and g its gradient; m and v are the means of past g and g²; betas are β₁ and
    β₂.
    """
    beta1, beta2 = betas
    m = (1 - beta1) * g + beta1 * m  # the mean of recent gradients
    v = (1 - beta2) * (g * g) + beta2 * v  # the mean of their squares
    size = namespace(v).sqrt(v) + eps  # a typical gradient, entry by entry
    step = rate * (m / size)
    return decay * p - step, m, v


class AdamW(Adam):
    """Adam with decoupled weight decay: every entry shrinks at the same rate.

        p ← p − lr · (m̂ / (√v̂ + eps) + weight_decay · p),   m̂ and v̂ as in `Adam`, without decay

    In `Adam` the decay is part of g, and the division by √v̂ makes it weak for entries with large
    gradients. The other arguments are those of `Optimiser`. Source: Loshchilov and Hutter,
    "Decoupled Weight Decay Regularization" (2019), algorithm 2, in PyTorch's form: lr multiplies
    the decay, too.
    """

    def __init__(
        self,
        parameters: Parameters,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _updated(
        self,
        ps: list[Array],
        gs: list[Array],
        states: list[State],
        settings: Mapping[str, Any],
    ) -> list[Array]:
        # p − lr · weight_decay · p is decay · p.
        # The decay is not part of the gradient, so m and v do not contain it.
        decay = 1 - settings["lr"] * settings["weight_decay"]
        return self._adam_steps(ps, gs, states, settings, decay)


def decay_groups(model: Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for an optimiser: parameters with two or more axes decay, by weight_decay; others
    do not.

    So the matrices of linear maps and the tables of embeddings decay; the weights of norms and
    biases do not, except b_qk of the bilinear form, which has two axes.
    Source: nanoGPT, `configure_optimizers`.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]  # of linear maps, embeddings
    vectors = [p for p in model.parameters() if p.ndim < 2]  # biases, weights of norms
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]


def clip_gradients(parameters: Iterable[Tensor], max_norm: float, comm: Any = None) -> Any:
    """Scale the gradients of parameters by min(1, max_norm / (norm + 1e-6)); return their norm.

    All gradients together count as one vector, which may become shorter but keeps its direction.
    The norm is its length before scaling. If any entry is NaN, the norm and all entries become NaN.
    If the sum of the squares is infinite, so is the norm: for a finite max_norm, infinite entries
    become NaN and all finite ones 0. For float32 and float64, `torch.nn.utils.clip_grad_norm_` of
    torch 2.13 does the same.
    With comm, a communicator of `mh.parallel`, the gradients of all its ranks together are the
    vector.
    16-bit gradients are squared, added and scaled in float32.
    The norm is a number; on a device it is an array without axes, and only reading it waits for the
    device.
    Source: Pascanu et al., "On the difficulty of training recurrent neural networks" (2013).
    """
    given = [p for p in parameters if p.grad is not None]  # a step skips the others, too
    gradients = [half.widened(p.grad) for p in given]  # float32 if p has 16 bits
    square = _square_of_norm(gradients)  # ()

    # Every rank holds a part of the vector, and all scale by the same factor.
    if comm is not None:
        square = comm.all_reduce(square)

    if backend.on_host(square):
        norm = math.sqrt(float(square))
        if norm + 1e-6 <= max_norm:
            return norm  # the gradients stay as they are, without a copy
        scale = max_norm / (norm + 1e-6)
        scaled = [g * scale for g in gradients]
    else:
        norm, scaled = _clipped(gradients, square, max_norm)

    for p, g in zip(given, scaled, strict=True):
        # A gradient has the dtype of its parameter.
        p.grad = half.rounded(g, p.dtype) if backend.is_half(p.data) else g
    return norm


def _square_of_norm(gradients: list[Array]) -> Array:
    """The sum of the squares of all entries of all gradients, an array without axes."""
    if gradients and (fast := device_kernel("square_of_norm", gradients[0])):
        square = fast(gradients)
        if square is not None:
            return square

    # A product of a vector with itself makes no array of squares.
    flat = [namespace(g).reshape(g, (-1,)) for g in gradients]
    squares = [namespace(g).vecdot(g, g) for g in flat]  # () each
    return backend.asarray(sum(squares))


def _clipped(gradients: list[Array], square: Array, max_norm: float) -> tuple[Array, list[Array]]:
    """The norm of the gradients, and the gradients times min(1, max_norm / (norm + 1e-6)), on a
    device. `square` is the square of the norm.

    The gradients are multiplied even if the factor is 1, since the host does not wait to learn the
    norm.
    """
    if gradients and (fast := device_kernel("clipped", gradients[0])):
        clipped = fast(gradients, square, max_norm)
        if clipped is not None:
            return clipped

    norm = namespace(square).sqrt(square)  # ()
    scale = backend.clip(max_norm / (norm + 1e-6), high=1.0)  # ()
    return norm, [g * scale for g in gradients]


def warmup_cosine(step: int, *, steps: int, warmup: int, lr: float, min_lr: float) -> float:
    """The learning rate of a step, counted from 0: a linear rise, then half a cosine down.

        step < warmup   lr · (step + 1) / (warmup + 1)
        step < steps    min_lr + ½ (1 + cos(π · (step − warmup) / (steps − warmup))) · (lr − min_lr)
        otherwise       min_lr

    Source: nanoGPT, `get_lr`.
    """
    # With + 1, the first step is not 0.
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    if step >= steps:
        return min_lr

    angle = math.pi * (step - warmup) / (steps - warmup)  # from 0 to π
    factor = 0.5 * (1 + math.cos(angle))  # from 1 to 0
    return min_lr + factor * (lr - min_lr)


@functools.cache
def _keep_freed_memory() -> None:
    """Make glibc keep up to 64 MB of the memory that a training step frees for the next step.

    Otherwise glibc returns large blocks to the system and gets them back page by page, which takes
    a fifth of the time of a small GPT's step. It keeps free memory up to a limit: twice the size of
    the largest block of at most 32 MiB that has been freed. So this function allocates a block of
    almost 32 MiB and frees it. Nothing is written to the block, so the system need not provide it.
    """
    bytes(2**25 - 2**16)  # a little less than 32 MiB, with its header

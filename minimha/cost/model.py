"""What attention costs: parameters, floating-point operations, bytes moved and kept, and time.

    print(mh.cost.multi_head("fused", M=512, H=8, T=128))
    mh.cost.compare(M=512, H=8, T=128)        # all forms of the projections, and which one wins

A computation is a list of steps, one for each array operation. A step does so many floating-point
operations and moves so many bytes; all else is a sum over the list. Nearly all floating-point
operations are those of products of matrices (rows, inner) (inner, columns), and each of these
brings two more in the backward, da = dy bᵀ and db = aᵀ dy: so the backward costs twice the forward.

Exact: parameters, the number of products and the flops of each, what is saved, and the bytes of
`projections`. Bytes are those of all operands and results, as if there were no cache. Those of
`attention` are right to half a percent, because checks of a number a row are counted roughly; those
of `multi_head` to eight where T is near S, because heads that lie apart in memory are sometimes
brought together first, which is not counted. Time is an estimate, from two curves and a number that
`calibrate` measures.

All is said of attention without mask, bias of the scores, sink, softcap and dropout, on NumPy's
arrays, the gradient of the input wanted.
"""

from __future__ import annotations

import bisect
import functools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minimha_autograd import Tensor, backend

from ..checks import integer
from ..projections import FORMS, Projections, Sizes, form_named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Comparison",
    "Cost",
    "Machine",
    "Setting",
    "Step",
    "attention",
    "calibrate",
    "compare",
    "multi_head",
    "projections",
]

IMPLEMENTATIONS = "reference", "loop", "steps"


@dataclass(frozen=True)
class Step:
    """An array operation: its flops, the bytes that it reads and writes, how often it is done, and
    whether that is in the backward. A product is of so many matrices, one after another. A node of
    the tape is a step that moves nothing."""

    flops: int
    bytes: int
    times: int = 1
    backward: bool = False
    matrices: int = 1


@dataclass(frozen=True)
class Cost:
    """What a computation costs. Costs add up.

    parameters  numbers that are learned
    saved       bytes that the pullbacks keep from forward to backward, inputs and parameters aside
    steps       the array operations
    """

    parameters: int = 0
    saved: int = 0
    steps: tuple[Step, ...] = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of the products of matrices; multiply and add are two."""
        return sum(s.flops * s.times for s in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes of all operands read and all results written."""
        return sum(s.bytes * s.times for s in self.steps)

    @property
    def calls(self) -> int:
        """The number of array operations, and of nodes of the tape."""
        return sum(s.times for s in self.steps)

    @property
    def products(self) -> Counter[int]:
        """How many products of matrices there are of so many flops."""
        found: Counter[int] = Counter()
        for s in self.steps:
            if s.flops:
                found[s.flops] += s.times
        return found

    def seconds(self, machine: Machine | None = None) -> float:
        """The time to expect, in seconds: for each step

            overhead + max(matrices · time(flops / matrices), time(bytes))

        of the machine, by default this one as `calibrate` finds it for float32.
        Source: Williams et al., "Roofline: An Insightful Visual Performance Model" (2009), with
        curves in place of one peak and one bandwidth.
        """
        m = calibrate() if machine is None else machine
        return sum(
            s.times
            * (
                m.overhead
                + max(
                    s.matrices * _on(m.products, s.flops / s.matrices),
                    _on(m.walks, s.bytes),
                )
            )
            for s in self.steps
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters, self.saved + other.saved, self.steps + other.steps
        )

    def __str__(self) -> str:
        return (
            f"{self.parameters:,} parameters, {_short(self.flops)}flop, "
            f"{_short(self.bytes)}B moved in {self.calls} calls, {_short(self.saved)}B saved"
        )


@dataclass(frozen=True)
class Setting:
    """The sizes of a computation, in the letters of the glossary: `Setting.of(M=512, H=8, T=128)`.

    B, T, S  batch, query positions, key positions
    sizes    M, Mk, Mv, H, G, D, Dv
    cross    whether query, key and value are three inputs, and not one
    bias     whether the projections have biases
    dtype    "float32" or "float64"
    """

    B: int
    T: int
    S: int
    sizes: Sizes
    cross: bool
    bias: bool
    dtype: str

    @classmethod
    def of(
        cls,
        *,
        T: int,
        H: int,
        M: int | None = None,
        B: int = 1,
        S: int | None = None,
        G: int | None = None,
        D: int | None = None,
        Dv: int | None = None,
        Mk: int | None = None,
        Mv: int | None = None,
        bias: bool = True,
        dtype: str = "float32",
    ) -> Setting:
        """M is H·D and D is M/H, so one of the two must be given; G is H, Dv is D, Mk is M, Mv is
        Mk. Without S, Mk and Mv this is self-attention: one input, S = T.

        Raises ValueError for sizes that do not go together.
        """
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is float32 or float64, not {dtype!r}: others are converted")
        if M is None and D is None:
            raise ValueError("M or D must be given: D is M/H")
        H = integer(H, "H", least=1)
        M = integer(H * integer(D, "D") if M is None else M, "M", least=1)
        if D is None and M % H:
            raise ValueError(f"M = {M} must be a multiple of H = {H}, or D be given")
        D = M // H if D is None else D
        key_width = M if Mk is None else Mk
        sizes = Sizes(
            d_model=M,
            kdim=key_width,
            vdim=key_width if Mv is None else Mv,
            num_heads=H,
            num_kv_heads=H if G is None else G,
            head_dim=D,
            v_head_dim=D if Dv is None else Dv,
        )
        return cls(
            B=integer(B, "B", least=1),
            T=integer(T, "T", least=1),
            S=integer(T if S is None else S, "S", least=1),
            sizes=sizes,
            cross=any(n is not None for n in (S, Mk, Mv)),
            bias=bias,
            dtype=dtype,
        )

    def inputs(self) -> dict[str, int]:
        """How many numbers queries, keys and values are made from: B·T·M, B·S·Mk, B·S·Mv."""
        lengths = {"q": self.T, "k": self.S, "v": self.S}
        roles = self.sizes.roles()
        return {role: self.B * n * roles[role][0] for role, n in lengths.items()}


def projections(form: str = "stacked", *, backward: bool = True, **letters: Any) -> Cost:
    """The maps from the inputs to Q, K and V, in one of `projections.FORMS`.

    letters   those of `Setting.of`
    backward  whether gradients follow; without them nothing is saved

        form       parameters, less biases      forward flops
        per-head   (H + G)·M·D + G·M·Dv         2·B·T times as many
        stacked    the same                     the same
        fused      the same                     the same
        double     3·M² more                    2·B·T times as many
        bilinear   H·M² + G·M·Dv                2·B·T times as many

    for one input of width M. The backward has twice these flops. Only the double form saves more
    than inputs and parameters: its 3·B·T·M first products. The bilinear form has keys of width M,
    which `attention` pays for: `multi_head` counts both.

    Raises ValueError for an unknown form, and for the fused one with three inputs.
    """
    form_named(form)
    s = Setting.of(**letters)
    z, inputs = s.sizes, s.inputs()
    if form == "fused" and s.cross:
        raise ValueError("the fused form is for self-attention, of one input: leave S, Mk, Mv out")
    held = _parameters(form, z, s.bias)
    steps = [_pass(2 * n, backward=True) for n in held]  # gradients land in copies
    if form == "fused":
        steps += _fused(s)
    else:
        for role in inputs:
            steps += _role(form, role, s)
        alike = {"q": z.num_heads, "k": z.num_kv_heads, "v": z.num_kv_heads}
        uses = {role: alike[role] if form == "per-head" else 1 for role in inputs}
        if not s.cross:
            uses = {"q": sum(uses.values())}
        for role, n in uses.items():  # the gradients of an input are summed over its uses
            steps += [_pass(3 * inputs[role], times=n - 1, backward=True)] if n > 1 else []
    saved = sum(inputs.values()) if form == "double" else 0
    return _cost(s, backward, steps, parameters=sum(held), saved=saved)


def attention(implementation: str = "reference", *, backward: bool = True, **letters: Any) -> Cost:
    """softmax(scale · Q Kᵀ) V of arrays Q (B, H, T, D), K (B, G, S, D), V (B, G, S, Dv).

    implementation  "reference", "loop", or "steps" for `attention_steps`

        forward flops   2·B·H·T·S·(D + Dv), and twice that backward, in all of them
        saved           B·H·T·S numbers, the weights; in a loop with grouped heads also each head's
                        copy of its keys and values

    letters and backward as in `projections`. `attention_steps` keeps raw and scaled scores as well,
    to be looked at, which are not counted.
    """
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"no costs are known of {implementation!r}: of {', '.join(IMPLEMENTATIONS)} they are"
        )
    s = Setting.of(**letters)
    z = s.sizes
    heads, groups, d, dv = s.B * z.num_heads, s.B * z.num_kv_heads, z.head_dim, z.v_head_dim
    saved = heads * s.T * s.S
    if implementation != "loop":
        nodes = 4 if implementation == "steps" else 3
        steps = [_NODE] * nodes + _attended(groups, heads // groups * s.T, s.S, d, dv)
        return _cost(s, backward, steps, saved=saved)
    steps = [_NODE] * 3 + _times(heads, _attended(1, s.T, s.S, d, dv))
    steps += [_pass(2 * heads * s.T * n) for n in (dv, s.S)]  # outputs and weights, stacked
    parts = s.T * d, s.S * d, s.S * dv
    steps += [_pass(2 * heads * n, backward=True) for n in parts]  # gradients, stacked
    if heads != groups:
        saved += heads * s.S * (d + dv)
        copies = [(heads + groups) * s.S * n for n in (d, dv)]
        steps += [_pass(n) for n in copies] + [_pass(n, backward=True) for n in copies]
    return _cost(s, backward, steps, saved=saved)


def multi_head(
    form: str = "stacked",
    implementation: str = "reference",
    *,
    backward: bool = True,
    **letters: Any,
) -> Cost:
    """A whole `MultiHeadAttention`: `projections`, `attention`, and the output times W^O.

        output   H·Dv·M parameters, 2·B·T times as many flops forward, twice that backward
        saved    also Q, K, V and the B·T·H·Dv merged outputs of the heads

    In the bilinear form Q is (B, H, T, Mk), and K is the input. Arguments as in `projections` and
    `attention`; "steps" is no implementation of the module.
    """
    if implementation == "steps":
        raise ValueError('"steps" is `attention_steps`, which MultiHeadAttention does not run')
    s = Setting.of(**letters)
    z = s.sizes
    bilinear = form == "bilinear"
    head_dim = z.kdim if bilinear else z.head_dim
    of_heads = {"H": z.num_heads, "G": z.num_kv_heads, "D": head_dim, "Dv": z.v_head_dim}
    inner = attention(
        implementation, backward=backward, B=s.B, T=s.T, S=s.S, dtype=s.dtype, **of_heads
    )
    heads, groups, loop = s.B * z.num_heads, s.B * z.num_kv_heads, implementation == "loop"
    copied = loop and heads != groups  # then `attention` counts the copies of K and V
    lies_apart = loop and s.B > 1 and z.num_kv_heads > 1  # heads of a batch: taken out of a copy
    as_input = bilinear and not lies_apart
    saved = heads * s.T * head_dim + heads * s.T * z.v_head_dim
    saved += 0 if copied else groups * s.S * z.v_head_dim
    saved += 0 if copied or as_input else groups * s.S * head_dim
    columns, n = z.num_heads * z.v_head_dim, s.B * s.T
    weights = [columns * z.d_model] + [z.d_model] * s.bias
    steps = [_NODE, *_linear(n, columns, z.d_model, s.bias)]
    steps += [_pass(2 * n * columns)] if z.num_heads > 1 else []  # merge heads
    steps += [_pass(2 * w, backward=True) for w in weights]
    outer = _cost(s, backward, steps, parameters=sum(weights), saved=saved)
    return projections(form, backward=backward, **letters) + inner + outer


def _parameters(form: str, z: Sizes, bias: bool) -> list[int]:
    """The size of every array of weights."""
    roles = list(z.roles().values())
    if form == "fused":
        columns = sum(count * dim for _, count, dim in roles)
        return [z.d_model * columns] + [columns] * bias
    if form == "bilinear":
        width, v_columns = z.num_heads * z.kdim, z.num_kv_heads * z.v_head_dim
        return [z.d_model * width, z.vdim * v_columns] + [width, v_columns] * bias
    parts = {True: lambda h, d: [d] * h, False: lambda h, d: [h * d]}[form == "per-head"]
    sizes = [n * c for w, h, d in roles for n in [w] + [1] * bias for c in parts(h, d)]
    return sizes + ([w * w for w, _, _ in roles] if form == "double" else [])


_NODE = Step(0, 0)


def _pass(moved: int, *, times: int = 1, backward: bool = False) -> Step:
    """A walk over entries: so many are read or written."""
    return Step(0, moved, times, backward)


def _product(
    batch: int, rows: int, inner: int, columns: int, a: int | None = None, b: int | None = None
) -> list[Step]:
    """y = a b for a (batch, rows, inner), b (batch, inner, columns), and da = dy bᵀ, db = aᵀ dy.

    a, b  their sizes, where they are broadcast over the batch
    """
    da, db, y = batch * rows * inner, batch * inner * columns, batch * rows * columns
    a, b = da if a is None else a, db if b is None else b
    flops = 2 * batch * rows * inner * columns
    return [
        Step(flops, a + b + y, matrices=batch),
        Step(flops, y + b + da, backward=True, matrices=batch),
        Step(flops, a + y + db, backward=True, matrices=batch),
    ]


def _linear(rows: int, inner: int, columns: int, bias: bool) -> list[Step]:
    steps = _product(1, rows, inner, columns)
    if bias:
        moved = rows * columns + columns
        steps += _pass(moved + rows * columns), _pass(moved, backward=True)
    return steps


def _merged(count: int, t: int, size: int) -> list[Step]:
    """A gradient (B, H, T, D) as (B, T, H·D): a copy, unless one of the axes is of length 1."""
    return [_pass(2 * size, backward=True)] if count > 1 and t > 1 else []


def _fused(s: Setting) -> list[Step]:
    """Q, K and V, nodes of their own, from one product; their gradients merged and then joined."""
    z, n = s.sizes, s.B * s.T
    merged = [
        step
        for _, count, dim in z.roles().values()
        for step in _merged(count, s.T, n * count * dim)
    ]
    columns = sum(count * dim for _, count, dim in z.roles().values())
    joined = _pass(2 * n * columns, backward=True)
    return [_NODE] * 4 + _linear(n, z.d_model, columns, s.bias) + [*merged, joined]


def _role(form: str, role: str, s: Setting) -> list[Step]:
    """Q, K or V in the forms that make each by itself."""
    width, count, dim = s.sizes.roles()[role]
    t = s.T if role == "q" else s.S
    n = s.B * t
    if form == "bilinear" and role == "q":
        return _bilinear(s)
    if form == "bilinear" and role == "k":  # the input itself, seen by every head
        summed = [_pass(n * width * (count + 1), backward=True)] if count > 1 else []
        return [_NODE] * 2 + summed
    if form == "per-head":
        one = [_NODE, *_linear(n, width, dim, s.bias)]
        if count > 1 and s.B > 1 and t > 1:
            one += [_pass(2 * n * dim, backward=True)]  # a head of dy, as rows
        return [_NODE, _pass(2 * n * count * dim), *_times(count, one)]  # a stack of them
    first = [_NODE, *_linear(n, width, width, bias=False)] if form == "double" else []
    merged = _merged(count, t, n * count * dim)
    return [*first, _NODE, *_linear(n, width, count * dim, s.bias), *merged]


def _bilinear(s: Setting) -> list[Step]:
    """Q = x W_i + b for every head: x (B, 1, T, M), W (H, M, Mk), b (H, 1, Mk), Q (B, H, T, Mk)."""
    z = s.sizes
    h, m, mk = z.num_heads, z.d_model, z.kdim
    x, w, y = s.B * s.T * m, h * m * mk, s.B * h * s.T * mk
    steps = [_NODE] * 2 + _product(s.B * h, s.T, m, mk, a=x, b=w)
    if h > 1:
        steps += [_pass(h * x + x, backward=True)]  # dx, summed over the heads
    steps += [_pass(s.B * w + w, backward=True)]  # dW, summed over the batch
    if s.bias:
        steps += _NODE, _NODE, _pass(2 * y + h * mk), _pass(y + h * mk, backward=True)
    return steps


def _attended(batch: int, t: int, s: int, d: int, dv: int) -> list[Step]:
    """A batch of heads with T queries and S keys each: scores, softmax, the sum of values."""
    p, r = batch * t * s, batch * t
    walk, down, across = 2 * p, p + r, 2 * p + r  # P to P, P to a number a row, both to P
    forward = [walk, down, across, walk, down, across]  # scale, max, subtract, exp, sum, divide
    backward = [3 * p, down, across, 3 * p, walk]  # dP · P, sum, subtract, times P, scale
    return [
        *_product(batch, t, d, s),
        *(_pass(n) for n in forward),
        _pass(2 * r, times=6),  # maxima of −∞ and sums of 0 are replaced
        *_product(batch, t, s, dv),
        *(_pass(n, backward=True) for n in backward),
    ]


def _times(count: int, steps: Iterable[Step]) -> list[Step]:
    return [replace(step, times=count * step.times) for step in steps]


def _cost(
    s: Setting, backward: bool, steps: list[Step], *, parameters: int = 0, saved: int = 0
) -> Cost:
    """From numbers of entries to bytes, and without the backward if it is not wanted."""
    size = {"float32": 4, "float64": 8}[s.dtype]
    kept = [replace(x, bytes=x.bytes * size) for x in steps if backward or not x.backward]
    return Cost(parameters, saved * size if backward else 0, tuple(kept))


Curve = tuple[tuple[float, float], ...]
"""Sizes, rising, and the seconds that each takes."""


@dataclass(frozen=True)
class Machine:
    """What a machine takes: for the product of two matrices, by its flops; for a walk over entries,
    by the bytes that are read and written; for every array operation, however small."""

    products: Curve
    walks: Curve
    overhead: float

    def __str__(self) -> str:
        flops, bandwidth = (max(n / t for n, t in curve) for curve in (self.products, self.walks))
        slow = min(n / t for n, t in self.walks[-2:])
        return (
            f"{_short(flops)}flop/s at best, {_short(bandwidth)}B/s in the cache and "
            f"{_short(slow)}B/s in fresh memory, {_short(self.overhead)}s a call"
        )


@functools.cache
def calibrate(dtype: str = "float32") -> Machine:
    """This machine, measured within two seconds, the first time it is asked for.

    products  of square matrices of 8 to 384 rows, the mean of y = a b, da = y bᵀ and db = aᵀ y, and
              no more than as many smaller ones take: threads that wait for each other are left out
    walks     sums of two arrays of 4 KB to 8 MB, of which eight are kept, as activations are: in
              the cache, out of it, and in memory that has to be had from the system first
    overhead  of the stacked projections of a 2×2 input, forward and backward, a step
    """

    def ones(*shape: int) -> Any:
        return backend.full(shape, 1.0, dtype=dtype)

    products: list[tuple[float, float]] = []
    for n in (8, 24, 64, 160, 384):
        count = max(1, 48**3 // n**3)
        a = ones(count, n, n)
        times = [_seconds(f) for f in (lambda: a @ a, lambda: a @ a.mT, lambda: a.mT @ a)]  # noqa: B023
        flops, least = 2.0 * n**3, sum(times) / 3 / count
        if products:  # it could be cut into the ones before
            least = min(least, products[-1][1] * flops / products[-1][0])
        products.append((flops, least))
    walks = []
    for k in (21, 20, 19, 18, 17, 16, 14, 12, 10):  # the system gives memory out more freely later
        x = ones(2**k)
        walks.append((3.0 * x.nbytes, _seconds(lambda: [x + x for _ in range(8)]) / 8))  # noqa: B023
    walks.reverse()
    small = Projections(2, 1, dtype=dtype)
    one = Tensor(ones(2, 2), requires_grad=True)

    def tiny() -> None:
        q, k, v = small.project(one, one, one)
        (q + k + v).backward(ones(1, 2, 2))

    calls = projections(M=2, H=1, T=2).calls + 4  # two sums and their nodes
    return Machine(tuple(products), tuple(walks), _seconds(tiny) / calls)


def _seconds(call: Callable[[], Any], budget: float = 0.03) -> float:
    """The least time of a call, of as many as fit into the budget: others were interrupted."""
    least = math.inf
    call()
    start = now = time.perf_counter()
    while now - start < budget:
        before, _ = now, call()
        now = time.perf_counter()
        least = min(least, now - before)
    return least


def _on(curve: Curve, size: float) -> float:
    """The time of a size on a curve: a power of it between two points, in proportion beyond."""
    if not size:
        return 0.0
    sizes = [n for n, _ in curve]
    k = bisect.bisect(sizes, size)
    if k in (0, len(curve)):
        n, t = curve[min(k, len(curve) - 1)]
        return t * size / n
    (n, t), (n1, t1) = curve[k - 1 : k + 1]
    return t * (size / n) ** (math.log(t1 / t) / math.log(n1 / n))


def compare(
    *,
    implementation: str = "reference",
    backward: bool = True,
    machine: Machine | None = None,
    **letters: Any,
) -> Comparison:
    """`multi_head` in every form of the projections, as a table that says which wins from where.

        mh.cost.compare(M=512, H=8, T=128)
        mh.cost.compare(M=512, H=8, T=128).plot()

    machine  for the times, this one by default
    letters  those of `Setting.of`; what is not given follows M and H where these are varied

    Raises ValueError for sizes that do not go together.
    """
    dtype = Setting.of(**letters).dtype
    machine = calibrate(dtype) if machine is None else machine
    return Comparison(letters, implementation, backward, machine)


@dataclass(frozen=True, repr=False)
class Comparison:
    """The forms of the projections side by side; shows itself as a table, and `plot` draws it."""

    letters: dict[str, Any]
    implementation: str
    backward: bool
    machine: Machine

    def costs(self, **letters: int) -> dict[str, Cost]:
        """The cost in every form that these sizes can have, some of them changed: costs(T=1)."""
        settings = {"backward": self.backward, **self.letters, **letters}
        cross = Setting.of(**{**self.letters, **letters}).cross
        forms = [form for form in FORMS if form != "fused" or not cross]
        return {form: multi_head(form, self.implementation, **settings) for form in forms}

    def seconds(self, axis: str) -> dict[str, dict[int, float]]:
        """For each form the expected time at sizes of one axis, "M", "H" or "T": powers of two."""
        s = Setting.of(**self.letters)
        here, low, high = {
            "M": (s.sizes.d_model, 4, 13),
            "H": (s.sizes.num_heads, 0, 9),
            "T": (s.T, 0, 13),
        }[axis]
        found: dict[str, dict[int, float]] = {form: {} for form in self.costs()}
        for n in sorted({here, *(2**k for k in range(low, high))}):
            try:
                costs = self.costs(**{axis: n})
            except ValueError:  # H does not divide M, or G does not divide H
                continue
            for form, cost in costs.items():
                found[form][n] = cost.seconds(self.machine)
        return found

    def crossovers(self) -> dict[str, float]:
        """The D beyond which bilinear has fewer parameters, and fewer flops, than the other forms.

            parameters   M·Mk·H / (M·H + Mk·G), which is M·H/(H + G) for Mk = M, and M/2 for G = H
            flops        H·T·Mk·(M + S) / (T·M·H + S·Mk·G + H·T·S), with the scores, T·S for each
                         head, of width Mk in place of D

        With biases M and Mk are one more in the sum and in M·H of the first. The second grows from
        the first (T = S small) to Mk (T large).
        """
        s = Setting.of(**self.letters)
        z = s.sizes
        m, mk, h, g, b = z.d_model, z.kdim, z.num_heads, z.num_kv_heads, int(s.bias)
        return {
            "parameters": h * (m + b) * mk / (h * (m + b) + g * (mk + b)),
            "flops": h * s.T * mk * (m + s.S) / (s.T * m * h + s.S * mk * g + h * s.T * s.S),
        }

    def winners(self, axis: str) -> list[tuple[int, str]]:
        """Which form is expected to be the fastest from which size of an axis on.

        One takes over from another where it is 20% faster: less than that is not told reliably.
        """
        seconds = self.seconds(axis)
        found: list[tuple[int, str]] = []
        for n in next(iter(seconds.values())):
            least = min(seconds, key=lambda form: seconds[form][n])
            if not found or seconds[found[-1][1]][n] > 1.2 * seconds[least][n]:
                found.append((n, least))
        return found

    def __str__(self) -> str:
        rows = [("form", "parameters", "flop", "bytes moved", "calls", "saved", "time expected")]
        rows += [
            (
                form,
                f"{c.parameters:,}",
                _short(c.flops).strip(),
                _short(c.bytes) + "B",
                f"{c.calls}",
                _short(c.saved) + "B",
                _short(c.seconds(self.machine)) + "s",
            )
            for form, c in self.costs().items()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        ]
        lines.insert(1, "─" * len(lines[0]))
        return "\n".join([self.title(), "", *lines, "", *self._answers()])

    __repr__ = __str__

    def title(self) -> str:
        """What is compared, with its sizes."""
        s = Setting.of(**self.letters)
        z = s.sizes
        named = {
            "B": s.B, "T": s.T, "S": s.S, "M": z.d_model, "Mk": z.kdim, "Mv": z.vdim,
            "H": z.num_heads, "G": z.num_kv_heads, "D": z.head_dim, "Dv": z.v_head_dim,
        }  # fmt: skip
        same = {"S": "T", "Mk": "M", "Mv": "Mk", "G": "H", "Dv": "D"}
        shown = [f"{k}={n}" for k, n in named.items() if k not in same or n != named[same[k]]]
        what = "forward and backward" if self.backward else "forward"
        return f"multi-head attention, {what}, {s.dtype}: {' '.join(shown)}"

    def _answers(self) -> list[str]:
        """The questions that the forms raise, with this setting's numbers."""
        z, costs = Setting.of(**self.letters).sizes, self.costs()
        factored = (z.d_model * z.num_heads + z.kdim * z.num_kv_heads) * z.head_dim
        products = z.num_heads * z.d_model * z.kdim
        least = {name: f"D > {_plain(d)}" for name, d in self.crossovers().items()}
        kinds = [form for form in ("per-head", "stacked", "fused") if form in costs]
        calls = ", ".join(f"{costs[form].calls} ({form})" for form in kinds)
        lines = [
            f"W^Q and W^K have {factored:,} numbers, their products W_i {products:,}: bilinear has "
            f"fewer where {least['parameters']}.",
            f"Bilinear has fewer flop, scores included, where {least['flops']}.",
            f"{', '.join(kinds)}: equal flop, in so many calls: {calls}.",
        ]
        for axis in "MHT":
            sizes = list(next(iter(self.seconds(axis).values())))
            (_, first), *rest = self.winners(axis)
            then = "".join(f", {form} from {n} on" for n, form in rest)
            lines.append(
                f"Fastest, by 20% at least, over {axis} = {sizes[0]} … {sizes[-1]}: {first}{then}."
            )
        return [f"· {line}" for line in lines]

    def plot(self) -> Figure:
        """The expected time of every form over M, H and T; dotted is where this setting stands."""
        from matplotlib.figure import Figure

        s = Setting.of(**self.letters)
        here = {"M": s.sizes.d_model, "H": s.sizes.num_heads, "T": s.T}
        words = {"M": "model width M", "H": "heads H", "T": "positions T"}
        figure = Figure(figsize=(10.5, 3.6), layout="constrained")
        for axes, (axis, label) in zip(figure.subplots(1, 3), words.items(), strict=True):
            for (form, times), (colour, dash) in zip(
                self.seconds(axis).items(), LINES, strict=False
            ):
                milliseconds = [1e3 * x for x in times.values()]
                axes.plot(list(times), milliseconds, color=colour, linestyle=dash, label=form)
            axes.axvline(here[axis], color="0.6", linestyle=":", linewidth=1, zorder=0)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel(label)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("expected time in ms")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, handlelength=3)
        figure.suptitle(self.title(), fontsize=10)
        return figure


LINES = (  # colours of Okabe and Ito, which do not depend on telling red from green
    ("#D55E00", (0, (1, 1))),
    ("#0072B2", "-"),
    ("#009E73", (0, (5, 2))),
    ("#CC79A7", (0, (4, 2, 1, 2))),
    ("#000000", (0, (8, 2, 1, 2, 1, 2))),
)


def _short(x: float) -> str:
    """Three digits and the prefix of a unit: 12.6 M."""
    if not x:
        return "0 "
    power = min(max(math.floor(math.log10(x) / 3), -3), 5)
    return f"{x / 1000**power:.3g} {'nµm kMGTP'[power + 3].strip()}"


def _plain(x: float) -> str:
    return f"{x:.1f}".removesuffix(".0")

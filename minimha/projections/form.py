"""What all forms of the projections share: sizes, weights, conversions, ranks.

Every conversion goes through the stacked form: each form defines the conversion to it
(`to_stacked`) and from it (`from_stacked`), both on arrays.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from minimha_autograd import Tensor, array_of, backend, widened
from minimha_autograd.backend import Array, namespace

from ..functional.checks import integer
from ..functional.masked_products import is_finite
from ..nn import Module
from ..nn.module import parameter


class Sizes(NamedTuple):
    """The widths of the inputs, the numbers of heads, the widths of a head."""

    d_model: int  # M
    num_heads: int  # H
    num_kv_heads: int  # G
    head_dim: int  # D
    v_head_dim: int  # Dv
    kdim: int  # Mk
    vdim: int  # Mv

    @classmethod
    def of(
        cls,
        d_model: int,
        num_heads: int,
        **sizes: int | None,
    ) -> Self:
        """All sizes from the given ones. Those that are absent or None have defaults:
        num_kv_heads = num_heads, head_dim = d_model / num_heads, v_head_dim = head_dim,
        kdim = d_model, vdim = kdim.

        Raises ValueError for a size below 1, if num_heads is not a multiple of num_kv_heads, and if
        head_dim is not given and d_model is not a multiple of num_heads.
        """
        d_model = integer(d_model, "d_model")
        num_heads = integer(num_heads, "num_heads")
        known = {name: integer(n, name) for name, n in sizes.items() if n is not None}

        # The defaults; those of Dv and Mv depend on D and Mk.
        if "head_dim" not in known:
            if d_model < 1 or num_heads < 1 or d_model % num_heads:
                raise ValueError(
                    f"d_model = {d_model} must be a positive multiple of num_heads = {num_heads}, "
                    "unless head_dim is given"
                )
            known["head_dim"] = d_model // num_heads
        known.setdefault("v_head_dim", known["head_dim"])
        known.setdefault("num_kv_heads", num_heads)
        known.setdefault("kdim", d_model)
        known.setdefault("vdim", known["kdim"])

        found = cls(d_model, num_heads, **known)
        for name, n in found._asdict().items():
            integer(n, name, least=1)
        if num_heads % found.num_kv_heads:
            raise ValueError(
                f"num_heads = {num_heads} must be a multiple of num_kv_heads = "
                f"{found.num_kv_heads}: every key head serves the same number of query heads"
            )
        return found

    def roles(self) -> dict[str, tuple[int, int, int]]:
        """For q, k and v: the width of the input, the number of heads, the width of a head."""
        return {
            "q": (self.d_model, self.num_heads, self.head_dim),  # M, H, D
            "k": (self.kdim, self.num_kv_heads, self.head_dim),  # Mk, G, D
            "v": (self.vdim, self.num_kv_heads, self.v_head_dim),  # Mv, G, Dv
        }


FORMS: dict[str, type[Any]] = {}
"""The forms by name, filled in by the package's `__init__`."""


def form_named(name: str) -> type[Any]:
    """The class of the form with this name. Raises ValueError for a name that is not in `FORMS`."""
    if name not in FORMS:
        raise ValueError(
            f"no form of the projections is called {name!r}: there are {', '.join(FORMS)}"
        )
    return FORMS[name]


@dataclass(eq=False, repr=False)
class Form(Module):
    """The linear maps of Q, K and V, their weights held in one of the `FORMS`.

    The weights are attributes: Tensors, lists with one Tensor per head, or None for a missing bias.
    (During a conversion they are arrays.)

    sizes             the widths of the inputs and of the heads, and the numbers of heads
    form              the name in `FORMS`
    rearranges        whether the weights are those of the stacked form in another order, so that
                      gradients can be converted too
    truncation_error  how much a conversion from the bilinear form cut off: the norm of what is
                      missing from all W_i = W_i^Q W_i^Kᵀ, with b_qk, relative to their norm;
                      otherwise 0
    """

    sizes: Sizes

    form: ClassVar[str]
    rearranges = True
    truncation_error = 0.0

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Q (…, H, T, D), K (…, G, S, D) and V (…, G, S, Dv) of query (…, T, M), key (…, S, Mk) and
        value (…, S, Mv). In the bilinear form Q and K have the width Mk, and K is the key itself.

        Raises ValueError in the fused form unless query, key and value are one and the same object.
        """
        raise NotImplementedError

    def to_stacked(self) -> Any:
        """These weights in the stacked form: a `Stacked`, which has one matrix each for Q, K and V,
        with the heads side by side. Attention stays the same, up to rounding, and this form is not
        changed.

        Raises ValueError in the bilinear form if W_i = W_i^Q W_i^Kᵀ, the matrix of a head, has a
        higher rank than D.
        """
        raise NotImplementedError

    @classmethod
    def from_stacked(cls, stacked: Any) -> Any:
        """The weights of `stacked`, a `Stacked`, in this form. Attention stays the same, up to
        rounding, and `stacked` is not changed.

        Raises ValueError for weights that this form cannot represent.
        """
        raise NotImplementedError

    def mapped(self, function: Callable[[Any], Any]) -> Self:
        """A copy with function(x) in place of every weight x. None, for a missing bias, stays
        None."""

        def changed(w: Any) -> Any:
            if w is None:  # no bias
                return None
            if isinstance(w, list):  # one weight for each head
                return [function(x) for x in w]
            return function(w)

        # All fields but the first are weights.
        names = [field.name for field in fields(self) if field.name != "sizes"]
        weights = {name: changed(getattr(self, name)) for name in names}
        return replace(self, **weights)

    def trainable(self) -> Self:
        """A copy of this form, whose weights are arrays: in the copy each weight is a Tensor that
        requires a gradient."""
        return self.mapped(lambda x: parameter(backend.copy(x)))

    def weights(self) -> list[Any]:
        """All weights in one flat list, without those that are None."""
        found: list[Any] = []
        self.mapped(found.append)
        return found

    def convert(self, form: str, *, head_dim: int | None = None) -> Form:
        """A copy in another form, whose name in `FORMS` is `form`. Up to rounding, attention has
        the same outputs and the same gradients of the inputs, unless head_dim cuts off a part of
        the weights. The parameters are new: an optimiser of the old ones does not update them, and
        tied weights are no longer tied. All new parameters require gradients if any of the old ones
        does.

        head_dim  D, for a conversion from the bilinear form: W_i = W_i^Q W_i^Kᵀ, the matrix of a
                  head, is replaced by its best approximation of rank D. A bias b_qk and the heads
                  that share one W^K are approximated together with it. The copy's
                  `truncation_error` says how much is cut off. If D is larger than the rank, the
                  columns beyond the rank are zero in both factors; so are their gradients, and
                  training leaves them zero

        Between the forms per-head, stacked and fused, gradients are converted as well if every
        weight has one. The bilinear form omits b_k, which adds the same number to all scores of a
        query and so has no effect on their softmax.

        Raises ValueError, with the reason, for an unknown form, for weights that the form cannot
        represent, for a head_dim in any other conversion and, without a head_dim, if W_i has a
        higher rank than D.
        """
        target = form_named(form)
        if head_dim is not None and (self.form != "bilinear" or form == "bilinear"):
            raise ValueError("head_dim is for converting from the bilinear form into another")
        if form == self.form:
            return copy.deepcopy(self)

        # A conversion works on arrays.
        arrays: Any = self.mapped(lambda p: p.data)
        stacked = arrays.to_stacked() if head_dim is None else arrays.factored(head_dim)
        new = target.from_stacked(stacked).trainable()
        new.truncation_error = stacked.truncation_error

        # A frozen layer stays frozen.
        if not any(p.requires_grad for p in self.weights()):
            new = new.mapped(lambda p: Tensor(p.data))

        # A rearranged weight has the rearranged gradient: the conversion is the same.
        both = self.rearranges and new.rearranges
        if both and all(p.grad is not None for p in self.weights()):
            old_gradients = self.mapped(lambda p: p.grad)
            gradients = target.from_stacked(old_gradients.to_stacked())
            for p, gradient in zip(new.weights(), gradients.weights(), strict=True):
                p.grad = backend.copy(gradient)
        return new

    def ranks(self) -> list[int]:
        """The rank of the product W_i = W_i^Q W_i^Kᵀ for each head: the number of its singular
        values that are larger than rounding errors.

        It is at most D, with two exceptions: the bilinear form learns W_i itself, and a W_i that is
        much smaller than its factors may have singular values that are only rounding errors of the
        product, but too large to be recognised as such.
        """
        wide: Any = self.mapped(lambda p: widened(p.data))
        if self.form != "bilinear":
            wide = FORMS["bilinear"].from_stacked(wide.to_stacked())
        w = wide.w_qk  # (H, M, Mk)
        xp = namespace(w)
        sigma = xp.linalg.svdvals(finite(w))  # (H, the smaller of M and Mk)

        # A learned W_i is as precise as its weights, a product as float32 or float64.
        learned = getattr(self, "w_qk", w)
        return ranks(sigma, array_of(learned))


def ranks(sigma: Array, matrices: Array) -> list[int]:
    """The rank of each of n matrices, as far as rounding errors let it be known: how many of its
    singular values sigma (n, N), in descending order, are larger than the limit of `rounding`, to
    which `matrices` is passed."""
    xp = namespace(sigma)
    larger = sigma > rounding(sigma, matrices)  # (H, N)
    counts = xp.sum(xp.astype(larger, xp.int64), axis=1)  # (H,)
    return [int(n) for n in counts]


def rounding(sigma: Array, matrices: Array) -> Array:
    """For each of n matrices, a limit (n, 1): a singular value up to this limit may be a mere
    rounding error.

    sigma     the singular values (n, N) of the matrices, in descending order
    matrices  an array like the matrices: its longest axis and the precision of its dtype say how
              large rounding errors are, relative to the largest singular value
    """
    eps = float(backend.finfo(matrices).eps)
    largest = sigma[:, :1]  # (H, 1)
    return max(matrices.shape) * eps * largest


def finite(w: Array) -> Array:
    """Return w unchanged. Raises ValueError if an entry of w is NaN or infinite, since w then has
    no singular values."""
    if not is_finite(w):
        raise ValueError("W_i = W_i^Q W_i^Kᵀ holds NaN or infinity: it has no rank and no factors")
    return w


def blocks(x: Array | None, count: int) -> list[Array] | None:
    """Cut the columns of x into count blocks of equal width, one for each head. Returns None if x
    is None."""
    if x is None:
        return None
    width = x.shape[-1] // count
    return [x[..., n * width : (n + 1) * width] for n in range(count)]  # each (…, width)

"""What all forms of the projections share: weights, conversions, ranks.

Every conversion goes through the stacked form. A form says how its weights are those of the stacked
form (`to_stacked`) and how to make it from them (`from_stacked`), both on arrays; `convert` applies
the two to the weights and, where a form only rearranges them, to their gradients.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from minimha_autograd import Tensor, backend, widened
from minimha_autograd.backend import Array, namespace

from ..nn import Module
from .sizes import Sizes

FORMS: dict[str, type[Any]] = {}
"""The forms by name; the package's `__init__`, which knows them all, enters them."""


def form_named(name: str) -> type[Any]:
    """The form of this name. Raises ValueError for a name that is not in `FORMS`."""
    if name not in FORMS:
        raise ValueError(
            f"no form of the projections is called {name!r}: there are {', '.join(FORMS)}"
        )
    return FORMS[name]


@dataclass(eq=False, repr=False)
class Form(Module):
    """The linear maps of Q, K and V, their weights held in one of the `FORMS`.

    The weights are attributes, named as in the paper: Tensors, lists of Tensors, one a head, or
    None for a bias that is left out. (While they are converted they are arrays.)

    form              the name in `FORMS`
    rearranges        whether the weights are those of the stacked form in another order, so that
                      gradients convert too
    truncation_error  what a conversion from the bilinear form cut off W, relative to W
    """

    sizes: Sizes

    form: ClassVar[str]
    rearranges = True
    truncation_error = 0.0

    def project(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """Q (…, H, T, D), K (…, G, S, D) and V (…, G, S, Dv) of query (…, T, M), key (…, S, Mk) and
        value (…, S, Mv). In the bilinear form Q and K have the width Mk, K being the key itself.

        Raises ValueError where the fused form is given three different inputs.
        """
        raise NotImplementedError

    def to_stacked(self) -> Any:
        """The same weights in the stacked form."""
        raise NotImplementedError

    @classmethod
    def from_stacked(cls, stacked: Any) -> Any:
        """This form of stacked weights."""
        raise NotImplementedError

    def weights(self) -> list[Any]:
        """All weights, one by one."""
        named = [getattr(self, name) for name in self._names()]
        lists = [w if isinstance(w, list) else [w] for w in named]
        return [x for weights in lists for x in weights if x is not None]

    def mapped(self, function: Callable[[Any], Any]) -> Self:
        """A copy with function(x) in place of every weight x."""
        changed: dict[str, Any] = {}
        for name in self._names():
            w = getattr(self, name)
            if isinstance(w, list):
                changed[name] = [function(x) for x in w]
            else:
                changed[name] = None if w is None else function(w)
        return replace(self, **changed)

    def _names(self) -> list[str]:
        return [field.name for field in fields(self) if field.name != "sizes"]

    def convert(self, form: str, *, head_dim: int | None = None) -> Form:
        """A copy in another form: equal outputs, and equal gradients of the inputs. In the same
        form, a copy of everything. The parameters are new ones: an optimiser of the old ones does
        not move them, tied weights come apart, and all require gradients unless none did.

        head_dim  D, for a conversion from the bilinear form: W_i is factored into this rank by its
                  singular values, even if that cuts something off. How much, relative to W, is the
                  copy's `truncation_error`. Columns beyond the rank of W_i are zero in both
                  factors, and no gradient ever reaches them

        Between the forms per-head, stacked and fused the gradients of the weights are converted as
        well, if every weight has one. The bilinear form leaves out b_k, which adds the same number
        to all scores of a query: exact if only a softmax follows.

        Raises ValueError for what the form cannot hold, with the reason; without a head_dim also
        where W_i has a higher rank than D.
        """
        target = form_named(form)
        if head_dim is not None and (self.form != "bilinear" or form == "bilinear"):
            raise ValueError("head_dim is for converting from the bilinear form into another")
        if form == self.form:
            return copy.deepcopy(self)
        arrays: Any = self.mapped(lambda p: p.data)
        stacked = arrays.to_stacked() if head_dim is None else arrays.factored(head_dim)
        new = target.from_stacked(stacked).mapped(parameter)
        new.truncation_error = stacked.truncation_error
        if not any(p.requires_grad for p in self.weights()):
            new = new.mapped(lambda p: Tensor(p.data))
        if self.rearranges and new.rearranges and all(p.grad is not None for p in self.weights()):
            gradients = target.from_stacked(self.mapped(lambda p: p.grad).to_stacked())
            for p, gradient in zip(new.weights(), gradients.weights(), strict=True):
                p.grad = backend.copy(gradient)
        return new

    def ranks(self) -> list[int]:
        """The rank of W_i = W_i^Q W_i^Kᵀ of each head: at most D, unless W_i itself is learned."""
        wide: Any = self.mapped(lambda p: widened(p.data))
        if self.form != "bilinear":
            wide = FORMS["bilinear"].from_stacked(wide.to_stacked())
        w = wide.w_qk
        xp = namespace(w)
        rounded = getattr(self, "w_qk", w)  # as precise as W was rounded, by us or in the weights
        sigma = xp.linalg.svdvals(finite(w))  # (H, min(M, Mk)), falling
        least = sigma[:, :1] * max(w.shape) * xp.finfo(rounded.dtype).eps
        return [int(n) for n in xp.sum(xp.astype(sigma > least, xp.int64), axis=1)]


def parameter(x: Array) -> Tensor:
    """A Tensor that holds a copy of x and requires a gradient."""
    return Tensor(backend.copy(x), requires_grad=True)


def finite(w: Array) -> Array:
    """w. Raises ValueError if NaN or infinity in it leave it without singular values."""
    xp = namespace(w)
    if not xp.all(xp.isfinite(w)):
        raise ValueError("W_i = W_i^Q W_i^Kᵀ holds NaN or infinity: it has no rank and no factors")
    return w


def blocks(x: Array | None, count: int) -> list[Array] | None:
    """The columns of x in count blocks of equal width: those of each head. None for None."""
    if x is None:
        return None
    width = x.shape[-1] // count
    return [x[..., n * width : (n + 1) * width] for n in range(count)]

"""What the ways to divide the training of a model among ranks have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from minimha_autograd.backend import Array

from ..multihead import MultiHeadAttention
from .places import part, positions, require_one_each


class Way:
    """How ranks divide the training of a GPT. A subclass says what each rank computes.

    comm   this rank's communicator
    model  the whole model, the same on every rank
    own    the model with which this rank computes

    The loss of the training is the sum of the losses of all ranks. So a rank's loss is the mean
    over its own tokens times their `fraction` of the tokens of all ranks, and the gradient of a
    parameter that every rank holds is the sum of the ranks' gradients. This rule is the same for
    every way.
    """

    axis: int | None = None
    """The axis of tokens (B, T) that is divided: 0 for sequences, 1 for positions, or None."""
    zigzag = False
    attend: Any = None
    """The function by which layers compute attention if they need the other ranks for it, or None
    if each layer computes it alone."""

    def __init__(self, comm: Any, model: Any) -> None:
        self.comm = comm
        self.model = model
        self.own = model  # a subclass may cut it

    def part(self, tokens: Array) -> Array:
        """This rank's part of tokens (B, T).

        Raises ValueError if there are more ranks than sequences, or than positions.
        """
        if self.axis is None:
            return tokens
        what = ("sequences", "positions")[self.axis]
        require_one_each(self.comm.size, tokens.shape[self.axis], what)
        return part(tokens, self.comm, self.axis, self.zigzag)

    def positions(self, length: int) -> Array | None:
        """The positions of this rank's tokens in sequences of this length, or None if it has all
        positions."""
        return positions(length, self.comm, self.zigzag) if self.axis == 1 else None

    def fraction(self, tokens: Array) -> float:
        """The number of this rank's tokens divided by the number of tokens of all ranks, for tokens
        (B, T)."""
        if self.axis is None:
            return 1 / self.comm.size
        return math.prod(self.part(tokens).shape) / math.prod(tokens.shape)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Inside the block, the layers of `own` compute attention together with the other ranks."""
        with ExitStack() as blocks:
            for layer in attention_layers(self.own) if self.attend else []:
                blocks.enter_context(layer.attend.replaced_by(self.attend))
            yield

    def split_axis(self, name: str) -> int | None:
        """The axis along which the parameter with this name, such as "blocks.0.attention.w_o", is
        divided among the ranks; None if every rank holds all of it."""
        return None

    def cut(self, name: str, x: Array) -> Array:
        """This rank's part of x, an array with the shape of the whole model's parameter of this
        name."""
        return x

    def gather(self) -> None:
        """Copy the parameters of `own`, from all ranks, to the whole model. Here `own` is the whole
        model, so there is nothing to copy."""

    def scatter(self) -> None:
        """Copy this rank's part of the whole model's parameters to `own`. Here `own` is the whole
        model, so there is nothing to copy."""


class PositionParallel(Way):
    """Each rank holds its own positions of the sequence.

    A subclass provides a static method attention(comm, query, key, value, mask, scale=…,
    softcap=…), in which this rank's queries attend to the keys of all ranks.
    """

    axis = 1
    attention: Any

    def attend(
        self,
        query: Any,
        key: Any,
        value: Any,
        mask: Any = None,
        *,
        scale: Any = None,
        softcap: Any = None,
        dropout: float = 0.0,
        rng: Any = None,
        implementation: str = "auto",
        **others: Any,
    ) -> Any:
        """The attention of a layer, with the arguments of `scaled_dot_product_attention`.

        Raises ValueError for any other argument that is used, such as bias, sink, dropout, keep or
        return_weights; None, False and a dropout of 0 do not count. rng and implementation are
        accepted but ignored: rng does nothing without dropout, and all implementations give the
        same result, up to rounding.
        """
        given = [name for name, x in others.items() if x is not None and x is not False]
        if dropout:
            given.append("dropout")
        if given:
            raise ValueError(f"ranks that divide the positions do not support {', '.join(given)}")
        return self.attention(self.comm, query, key, value, mask, scale=scale, softcap=softcap)


def attention_layers(model: Any) -> list[MultiHeadAttention]:
    """All attention layers of a model."""
    return [module for module in model.modules() if isinstance(module, MultiHeadAttention)]

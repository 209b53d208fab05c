"""Tensor parallel by heads: each rank has the weights of its own heads.

W^Q, W^K and W^V are divided by columns and W^O by rows. The output of the layer is the sum over
heads of headₕ W^Oₕ, so the ranks add up the outputs of their heads: one all_reduce in each layer,
and another one backward. Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from minimha_autograd import backend
from minimha_autograd.backend import Array

from ..multihead import MultiHeadAttention
from ..nn.module import parameter
from ..projections import project_out
from .collectives import parts
from .places import lengths, require_one_each
from .ways import Way, attention_layers

AXES = {"w_q": 1, "w_k": 1, "w_v": 1, "b_q": 0, "b_k": 0, "b_v": 0, "w_o": 0, "sink": 0}
"""The weights of a layer that are divided, and the axis along which heads lie side by side."""


class HeadParallel(Way):
    """The "heads" way to divide the training of a GPT: each rank reads all tokens, and computes its
    own heads of every attention layer. Every rank computes all other layers in full.

    A rank computes with the model `own`, which has only its heads, and also keeps the whole model,
    for evaluation and checkpoints. comm and model are as for `Way`.

    Raises the errors of `share_heads`.
    """

    def __init__(self, comm: Any, model: Any) -> None:
        super().__init__(comm, model)
        self.own = copy.deepcopy(model)
        self._groups = attention_layers(model)[0].sizes.num_kv_heads
        for layer in attention_layers(self.own):
            share_heads(comm, layer)

    def split_axis(self, name: str) -> int | None:
        return AXES.get(name.rpartition(".")[2])

    def cut(self, name: str, x: Array) -> Array:
        axis = self.split_axis(name)
        return x if axis is None else part_of_heads(self.comm, x, axis, self._groups)

    def gather(self) -> None:
        for (name, p), q in self._pairs():
            axis = self.split_axis(name)
            p.data = q.data if axis is None else self.comm.all_gather(q.data, axis)

    def scatter(self) -> None:
        for (name, p), q in self._pairs():
            q.data = self.cut(name, p.data)

    def _pairs(self) -> Any:
        return zip(self.model.named_parameters(), self.own.parameters(), strict=True)


def share_heads(comm: Any, layer: MultiHeadAttention) -> None:
    """Keep only this rank's heads of an attention layer, in place.

    comm is this rank's communicator. Query heads stay with the key head that they share. Called
    with the same inputs on every rank, the layer then returns the whole output on every rank.

    Raises ValueError if there are more ranks than key heads, and for a layer that is not in the
    stacked form, or that has alibi or a `QKNorm` over all heads.
    """
    sizes = layer.sizes
    require_one_each(comm.size, sizes.num_kv_heads, "heads of keys and values")
    together = layer.qk_norm is not None and layer.qk_norm.all_heads
    if layer.form != "stacked" or layer.alibi or together:
        raise ValueError(
            "ranks can divide the heads in the stacked form only, without alibi and without a "
            "QKNorm over all heads: layer.convert('stacked') changes the form"
        )

    def kept(name: str) -> Any:
        x = getattr(layer, name)
        if x is None:
            return None
        return parameter(part_of_heads(comm, x.data, AXES[name], sizes.num_kv_heads))

    count = lengths(sizes.num_kv_heads, comm.size)[comm.rank]
    group = sizes.num_heads // sizes.num_kv_heads
    layer.num_heads = count * group
    layer.projections = dataclasses.replace(
        layer.projections,
        sizes=sizes._replace(num_heads=count * group, num_kv_heads=count),
        **{name: kept(name) for name in AXES if name[2:] in ("q", "k", "v")},
    )
    layer.w_o, layer.sink = kept("w_o"), kept("sink")

    def summed_over_heads(heads: Any, w_o: Any, b_o: Any) -> Any:
        out = comm.all_reduce(project_out(heads, w_o))
        return out if b_o is None else out + b_o

    layer.project_out.provide(summed_over_heads)


def part_of_heads(comm: Any, x: Array, axis: int, groups: int) -> Array:
    """A copy of this rank's part of x along an axis, 0 or 1, that consists of G = `groups` equal
    runs, one for each key head. A rank gets the runs of its own key heads. comm is its
    communicator."""
    width, own = x.shape[axis] // groups, parts(groups, comm.size)[comm.rank]
    run = slice(own.start * width, own.stop * width)
    return backend.copy(x[run, ...] if axis == 0 else x[:, run])

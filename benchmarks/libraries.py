"""The libraries that `disagreements.py` compares, each called in the same way."""

from __future__ import annotations

import functools
import importlib
import math
import operator
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, NamedTuple

import numpy as np

import minimha as mh

MISSING, NOT_OFFERED = "not installed", "not offered"


class Answer(NamedTuple):
    out: np.ndarray  # (B, H, T, Dv)
    weights: np.ndarray | None = None
    gradients: tuple[np.ndarray, ...] = ()  # of query, key, value and, where there is one, bias


class NotOfferedError(Exception):
    """The library has no such setting, or nothing of the kind: the message is the verdict."""

    def __init__(self, verdict: str = NOT_OFFERED):
        super().__init__(verdict)


class Library:
    """A column of the page. `names` translates settings. Other settings keep their names, so that
    the library itself rejects those that it does not have."""

    name = package = call = note = ""
    names: ClassVar[dict[str, str]] = {}

    def attend(self, *arrays: np.ndarray, **settings: Any) -> Answer:
        """Attention of query (B, H, T, D), key (B, G, S, D), value (B, G, S, Dv), with settings:

        visible    boolean, True = may attend, translated to the polarity of the library
        mask       passed to the library's mask argument unchanged
        bias       numbers added to the scores
        weights    whether to return the weights
        inference  neither training nor gradients
        dout       the gradient of the output; the answer then includes gradients
        causal, window, dropout, and any other
        """
        raise NotImplementedError

    def layer(self, width: int, heads: int) -> tuple[Callable[..., Any], np.ndarray]:
        """A fresh layer as a function of arrays, and its W^Q (M, H·D)."""
        raise NotOfferedError("no layer")

    def translated(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Settings under the library's own names, without those that are off."""
        named = {self.names.get(name, name): x for name, x in settings.items()}
        return {name: x for name, x in named.items() if name and x is not None and x is not False}


class Minimha(Library):
    name = package = "minimha"
    call = "scaled_dot_product_attention"
    note = "`MultiHeadAttention` for layers"
    names: ClassVar = {"weights": "return_weights", "inference": ""}

    def attend(self, *arrays, bias=None, dout=None, **settings):
        rules = {
            "visible": mh.masks.dense,
            "causal": lambda _: mh.masks.causal(),
            "window": lambda n: mh.masks.sliding_window(n, n),
        }
        masks = [rule(settings.pop(name)) for name, rule in rules.items() if name in settings]
        if masks:
            settings["mask"] = functools.reduce(operator.and_, masks)
        arrays = [x for x in (*arrays, bias) if x is not None]
        leaves = [mh.Tensor(x, requires_grad=dout is not None) for x in arrays]
        inputs = dict(zip(("query", "key", "value", "bias"), leaves, strict=False))
        rng, settings = np.random.default_rng(0), self.translated(settings)
        result = mh.scaled_dot_product_attention(**inputs, **settings, rng=rng)
        out, weights = result if isinstance(result, tuple) else (result, None)
        if dout is not None:
            out.backward(dout)
        gradients = tuple(x.grad for x in leaves)
        return Answer(out.data, None if weights is None else weights.data, gradients)

    def layer(self, width, heads):
        layer = mh.MultiHeadAttention(width, heads)
        return layer, layer.w_q.data


class Torch(Library):
    """Code shared by the libraries that use torch: `compute` gives the output and weights."""

    package = "torch"

    def __init__(self):
        self.torch = importlib.import_module("torch")

    def attend(self, *arrays, bias=None, dout=None, **settings):
        torch = self.torch
        arrays = [x for x in (*arrays, bias) if x is not None]
        # one tensor for an array passed twice: a fast path recognises self-attention by identity
        tensors = {id(x): torch.tensor(x, requires_grad=dout is not None) for x in arrays}
        inputs = [tensors[id(x)] for x in arrays]
        if bias is not None:
            settings["bias"] = inputs[3]
        for name, x in settings.items():
            settings[name] = torch.tensor(x) if isinstance(x, np.ndarray) else x
        out, weights = self.compute(*inputs[:3], **settings)
        gradients = () if dout is None else torch.autograd.grad(out, inputs, torch.tensor(dout))
        weights = None if weights is None else weights.detach().numpy()
        return Answer(out.detach().numpy(), weights, tuple(g.numpy() for g in gradients))

    @staticmethod
    def merged(*inputs):
        """(B, H, T, D) as (B, T, H·D), one result for each different input."""
        merged = {id(x): x.movedim(1, 2).flatten(2) for x in inputs}
        return [merged[id(x)] for x in inputs]


class TorchSdpa(Torch):
    name = "torch SDPA"
    call = "torch.nn.functional.scaled_dot_product_attention"
    note = "`enable_gqa=True` if heads are grouped"
    names: ClassVar = dict.fromkeys(("visible", "mask", "bias"), "attn_mask") | {
        "causal": "is_causal",
        "weights": "need_weights",
        "dropout": "dropout_p",
        "inference": "",
    }

    def compute(self, q, k, v, **settings):
        self.torch.manual_seed(0)
        if q.shape[1] != k.shape[1]:
            settings["enable_gqa"] = True
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, **self.translated(settings)), None


class TorchMha(Torch):
    name = "torch MHA"
    call = "torch.nn.MultiheadAttention"
    note = (
        "its projections set to the identity, `batch_first=True`; in training mode and with "
        "weights requested (the defaults) unless a row says otherwise"
    )
    names: ClassVar = {"mask": "attn_mask", "bias": "attn_mask", "causal": "is_causal"}

    def compute(self, q, k, v, *, weights=True, inference=False, **settings):
        torch, (_, heads, _, width) = self.torch, q.shape
        if heads != k.shape[1] or width != v.shape[3]:
            raise NotOfferedError
        if "visible" in settings:
            settings["mask"] = ~settings.pop("visible")
        options = {"dropout": settings.pop("dropout", 0.0)}
        if "sink" in settings and not settings["sink"].any():  # the only sink that it has
            del settings["sink"]
            options["add_zero_attn"] = True
        torch.manual_seed(0)
        options |= {"batch_first": True, "dtype": q.dtype if q.is_floating_point() else None}
        layer = torch.nn.MultiheadAttention(heads * width, heads, **options)
        with torch.no_grad():
            layer.in_proj_weight.copy_(torch.eye(heads * width).repeat(3, 1))
            layer.out_proj.weight.copy_(torch.eye(heads * width))
        layer.train(not inference)
        with torch.inference_mode(inference):
            settings = self.translated(settings)
            out, shown = layer(*self.merged(q, k, v), need_weights=weights, **settings)
            return out.unflatten(2, (heads, width)).movedim(2, 1), shown

    def layer(self, width, heads):
        layer = self.torch.nn.MultiheadAttention(width, heads)

        def call(*arrays):
            out, weights = layer(*map(self.torch.tensor, arrays))
            return out.detach().numpy(), weights.detach().numpy()

        return call, layer.in_proj_weight[:width].detach().numpy()


class Jax(Library):
    name = package = "jax"
    call = "jax.nn.dot_product_attention"
    note = "with `jax_enable_x64`, heads and positions swapped, as it requires"
    names: ClassVar = {
        "visible": "mask",
        "causal": "is_causal",
        "weights": "return_weights",
        "window": "local_window_size",
        "inference": "",
    }

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_platforms", "cpu")
        self.jax.config.update("jax_enable_x64", True)

    def attend(self, *arrays, bias=None, dout=None, **settings):
        settings = self.translated(settings)

        def attention(q, k, v, *bias):
            swapped = (x.swapaxes(1, 2) for x in (q, k, v))
            return self.jax.nn.dot_product_attention(*swapped, *bias, **settings).swapaxes(1, 2)

        inputs = [self.jax.numpy.asarray(x) for x in (*arrays, bias) if x is not None]
        if dout is None:
            return Answer(np.asarray(attention(*inputs)))
        out, pullback = self.jax.vjp(attention, *inputs)
        gradients = pullback(self.jax.numpy.asarray(dout))
        return Answer(np.asarray(out), gradients=tuple(map(np.asarray, gradients)))


class Keras(Torch):
    name = package = "keras"
    call = "keras.layers.MultiHeadAttention"
    note = (
        "on its torch backend, the default dtype float32, its projections set to the identity; "
        "`GroupQueryAttention` if heads are grouped"
    )
    names: ClassVar = {
        "visible": "attention_mask",
        "mask": "attention_mask",
        "causal": "use_causal_mask",
        "weights": "return_attention_scores",
        "key_padding_mask": "key_mask",
    }

    def __init__(self):
        super().__init__()
        os.environ["KERAS_BACKEND"] = "torch"
        self.layers = importlib.import_module("keras").layers

    def compute(self, q, k, v, *, inference=False, **settings):
        (_, heads, _, d), (groups, dv) = q.shape, v.shape[1::2]
        options = {"dropout": settings.pop("dropout", 0.0), "seed": 0}
        if "window" in settings:
            options["sliding_window"] = settings.pop("window")
        if heads == groups:
            options |= {"value_dim": dv, "output_shape": heads * dv}
            layer = self.layers.MultiHeadAttention(heads, d, **options)
        else:
            layer = self.layers.GroupQueryAttention(d, heads, groups, **options)
        query, key, value = self.merged(q, k, v)
        layer.build(*(tuple(x.shape) for x in (query, value, key)))
        for role in ("query", "key", "value", "output"):
            kernel = getattr(layer, f"_{role}_dense").kernel
            kernel.assign(np.eye(math.isqrt(math.prod(kernel.shape))).reshape(kernel.shape))
        result = layer(query, value, key=key, training=not inference, **self.translated(settings))
        out, weights = result if isinstance(result, tuple) else (result, None)
        return out.unflatten(2, (heads, dv)).movedim(2, 1), weights

    def layer(self, width, heads):
        layer = self.layers.MultiHeadAttention(heads, width // heads)
        layer.build((1, 1, width), (1, 1, width))

        def call(*arrays):
            return layer(*map(self.torch.tensor, arrays)).detach().numpy()

        return call, np.asarray(layer.query_dense.kernel).reshape(width, -1)


class Onnx(Library):
    name, package = "ONNX", "onnx"
    call = "onnx.reference.ReferenceEvaluator"
    note = "on one `Attention` node that `onnx.checker` accepts; no gradients"
    names: ClassVar = {"causal": "is_causal", "inference": ""}

    def __init__(self):
        self.onnx = importlib.import_module("onnx")
        self.reference = importlib.import_module("onnx.reference")

    def attend(self, q, k, v, *, dout=None, weights=False, **settings):
        if dout is not None:
            raise NotOfferedError("forward only")
        onnx, inputs, outputs = self.onnx, {"Q": q, "K": k, "V": v}, ["Y"]
        for name in {"visible", "mask", "bias"} & set(settings):
            inputs["attn_mask"] = settings.pop(name)
        if "window" in settings:
            reach = settings.pop("window")
            settings |= {"left_window_size": reach, "right_window_size": reach}
        if weights:
            settings["qk_matmul_output_mode"] = 3
            outputs += ["", "", "weights"]
        settings = {n: int(x) if x is True else x for n, x in self.translated(settings).items()}
        if set(settings) - set(onnx.defs.get_schema("Attention").attributes):
            raise NotOfferedError

        def declared(name, dtype, shape):
            kind = onnx.helper.np_dtype_to_tensor_dtype(dtype)
            return onnx.helper.make_tensor_value_info(name, kind, shape)

        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("Attention", list(inputs), outputs, **settings)],
            "attention",
            [declared(name, x.dtype, x.shape) for name, x in inputs.items()],
            [declared(name, q.dtype, [None] * 4) for name in outputs if name],
        )
        model = onnx.helper.make_model(graph)
        onnx.checker.check_model(model, full_check=True)
        return Answer(*self.reference.ReferenceEvaluator(model).run(None, inputs))


LIBRARIES = (Minimha, TorchSdpa, TorchMha, Jax, Keras, Onnx)


def version_of(kind: type[Library]) -> str:
    try:
        return version(kind.package).partition("+")[0]
    except PackageNotFoundError:  # minimha may run from a clone
        return mh.__version__ if kind is Minimha else MISSING

"""Where libraries disagree about attention: one small experiment a question, run on all of them.

python benchmarks/disagreements.py [--save docs/disagreements.md] [--errors] [WORD …]

Needs NumPy and minimha; a peer that is not installed says so in its column. Every verdict is
computed from the numbers that came back. With words, only the questions that hold one of them are
asked; --errors prints what each error said.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import math
import os
import pathlib
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

import minimha as mh

B, H, T, S, D = 2, 3, 5, 7, 4  # the sizes, where an experiment does not say others
ABSENT, NOT_OFFERED, NO_GRADIENTS = "not installed", "not offered", "forward only"


# The libraries, each asked in the same words: host arrays query (B, H, T, D), key (B, G, S, D) and
# value (B, G, S, Dv) in, host arrays out. These settings are translated; others go through under
# the name they have here, so that what a library does not know it refuses itself:
#   visible  boolean, True = may attend, said in the library's own polarity
#   mask     an array that goes to the library's mask argument as it is
#   bias     numbers that are added to the scores
#   causal, window, weights (asks for them), dropout, inference (no training, no gradients)
#   dout     a cotangent of the output: the answer has gradients


class Answer(NamedTuple):
    out: np.ndarray  # (B, H, T, Dv)
    weights: np.ndarray | None = None
    gradients: tuple[np.ndarray, ...] = ()  # of query, key, value and, where given, bias


class NotOfferedError(Exception):
    """The library has no such setting, or nothing of the kind."""


class Peer:
    name, package, call, note = "", "", "", ""

    def attend(self, q: Any, k: Any, v: Any, **settings: Any) -> Answer:
        raise NotImplementedError

    def layer(self, width: int, heads: int) -> tuple[Callable[..., Any], Any]:
        """A fresh layer as a function of host arrays, and its W^Q (M, H·D), both as they come."""
        raise NotOfferedError("no layer")


class Minimha(Peer):
    name = package = "minimha"
    call = "scaled_dot_product_attention"
    note = "the layer is its `MultiHeadAttention`"

    def attend(self, q, k, v, *, bias=None, dout=None, **settings):
        rules = [settings.pop("mask")] if "mask" in settings else []
        if "visible" in settings:
            rules.append(mh.masks.dense(settings.pop("visible")))
        if settings.pop("causal", False):
            rules.append(mh.masks.causal())
        if (window := settings.pop("window", None)) is not None:
            if not hasattr(mh.masks, "sliding_window"):
                raise NotOfferedError
            rules.append(mh.masks.sliding_window(window, window))
        if rules:
            settings["mask"] = rules[0] & rules[1] if len(rules) > 1 else rules[0]
        if "dropout" in settings:
            settings["rng"] = np.random.default_rng(0)
        settings.pop("inference", None)  # there is no such mode
        settings["return_weights"] = settings.pop("weights", False)
        given = [q, k, v] if bias is None else [q, k, v, bias]
        if dout is not None:
            given = [mh.Tensor(x, requires_grad=True) for x in given]
        if bias is not None:
            settings["bias"] = given[3]
        answer = mh.scaled_dot_product_attention(*given[:3], **settings)
        out, weights = answer if settings["return_weights"] else (answer, None)
        if dout is None:
            return Answer(out, weights)
        out.backward(dout)
        return Answer(out.data, weights and weights.data, tuple(x.grad for x in given))

    def layer(self, width, heads):
        made = mh.MultiHeadAttention(width, heads)
        return made, made.w_q.data


class Torch(Peer):
    """What the peers that compute with torch share."""

    package = "torch"

    def __init__(self):
        self.torch = importlib.import_module("torch")

    def tensors(self, arrays, dout):
        """One tensor for each different array: a fast path asks for self-attention by identity."""
        made = {id(x): self.torch.tensor(x, requires_grad=dout is not None) for x in arrays}
        return [made[id(x)] for x in arrays]

    def answer(self, out, weights, dout, inputs):
        gradients = ()
        if dout is not None:
            gradients = self.torch.autograd.grad(out, inputs, self.torch.tensor(dout))
        weights = None if weights is None else weights.detach().numpy()
        return Answer(out.detach().numpy(), weights, tuple(g.numpy() for g in gradients))

    @staticmethod
    def merged(inputs):
        """(B, H, T, D) as (B, T, H·D), one result for each different input."""
        made = {id(x): x.movedim(1, 2).flatten(2) for x in inputs}
        return [made[id(x)] for x in inputs]


class TorchSdpa(Torch):
    name = "torch SDPA"
    call = "torch.nn.functional.scaled_dot_product_attention"
    note = "`enable_gqa=True` where heads are grouped"

    def attend(self, q, k, v, *, bias=None, dout=None, **settings):
        inputs = self.tensors([q, k, v] if bias is None else [q, k, v, bias], dout)
        settings.pop("inference", None)  # a function has no such mode
        if settings.pop("weights", False):
            settings["need_weights"] = True
        mask = settings.pop("visible", settings.pop("mask", None))
        if bias is not None:
            settings["attn_mask"] = inputs[3]
        elif mask is not None:
            settings["attn_mask"] = self.torch.tensor(mask)
        if settings.pop("causal", False):
            settings["is_causal"] = True
        if "dropout" in settings:
            self.torch.manual_seed(0)
            settings["dropout_p"] = settings.pop("dropout")
        if q.shape[1] != k.shape[1]:
            settings["enable_gqa"] = True
        out = self.torch.nn.functional.scaled_dot_product_attention(*inputs[:3], **settings)
        return self.answer(out, None, dout, inputs)


class TorchMha(Torch):
    name = "torch MHA"
    call = "torch.nn.MultiheadAttention"
    note = (
        "its projections set to the identity, `batch_first=True`; in training mode and asked for "
        "weights, as by default, where a row does not say otherwise"
    )

    def attend(self, q, k, v, *, bias=None, dout=None, weights=True, inference=False, **settings):
        torch, width = self.torch, math.prod(q.shape[1::2])
        if q.shape[1] != k.shape[1]:
            raise NotOfferedError
        if q.shape[3] != v.shape[3]:
            raise NotOfferedError
        made = {"dropout": settings.pop("dropout", 0.0)}
        if "sink" in settings and not settings["sink"].any():  # it has one whose logit is 0
            made["add_zero_attn"] = settings.pop("sink") is not None
        dtype = getattr(torch, str(q.dtype)) if q.dtype.kind == "f" else None
        module = torch.nn.MultiheadAttention(
            width, q.shape[1], batch_first=True, dtype=dtype, **made
        )
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
        inputs = self.tensors([q, k, v] if bias is None else [q, k, v, bias], dout)
        mask = settings.pop("mask", None)
        if "visible" in settings:
            mask = ~settings.pop("visible")
        if "key_padding_mask" in settings:
            settings["key_padding_mask"] = torch.tensor(settings["key_padding_mask"])
        if bias is not None:
            settings["attn_mask"] = inputs[3]
        elif mask is not None:
            settings["attn_mask"] = torch.tensor(mask)
        if settings.pop("causal", False):
            settings["is_causal"] = True
        torch.manual_seed(0)
        with torch.inference_mode(inference):
            out, shown = module.train(not inference)(
                *self.merged(inputs[:3]), need_weights=weights, **settings
            )
            out = out.unflatten(2, (q.shape[1], v.shape[3])).movedim(2, 1)
        return self.answer(out, shown, dout, inputs)

    def layer(self, width, heads):
        module = self.torch.nn.MultiheadAttention(width, heads)

        def call(*arrays):
            out, weights = module(*map(self.torch.tensor, arrays))
            return out.detach().numpy(), weights.detach().numpy()

        return call, module.in_proj_weight[:width].detach().numpy()


class Jax(Peer):
    name, package = "jax", "jax"
    call = "jax.nn.dot_product_attention"
    note = "with `jax_enable_x64`, heads and positions swapped, as it wants them"

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_platforms", "cpu")
        self.jax.config.update("jax_enable_x64", True)

    def attend(self, q, k, v, *, bias=None, dout=None, **settings):
        settings.pop("inference", None)
        if settings.pop("weights", False):
            settings["return_weights"] = True
        if "visible" in settings:
            settings["mask"] = settings.pop("visible")
        if settings.pop("causal", False):
            settings["is_causal"] = True
        if "window" in settings:
            settings["local_window_size"] = settings.pop("window")

        def f(q, k, v, *bias):
            swapped = (x.swapaxes(1, 2) for x in (q, k, v))
            return self.jax.nn.dot_product_attention(*swapped, *bias, **settings).swapaxes(1, 2)

        given = [self.jax.numpy.asarray(x) for x in (q, k, v, bias) if x is not None]
        if dout is None:
            return Answer(np.asarray(f(*given)))
        out, pull = self.jax.vjp(f, *given)
        gradients = pull(self.jax.numpy.asarray(dout))
        return Answer(np.asarray(out), gradients=tuple(map(np.asarray, gradients)))


class Keras(Torch):
    name, package = "keras", "keras"
    call = "keras.layers.MultiHeadAttention"
    note = (
        "on its torch backend, dtype float32 as by default, its projections set to the identity; "
        "`GroupQueryAttention` where heads are grouped"
    )

    def __init__(self):
        super().__init__()
        os.environ["KERAS_BACKEND"] = "torch"
        self.keras = importlib.import_module("keras")

    def attend(self, q, k, v, *, dout=None, weights=False, inference=False, **settings):
        heads, groups, (d, dv) = q.shape[1], k.shape[1], (q.shape[3], v.shape[3])
        made = {"dropout": settings.pop("dropout", 0.0), "seed": 0}
        if "window" in settings:
            made["sliding_window"] = settings.pop("window")
        if heads == groups:
            made |= {"value_dim": dv, "output_shape": heads * dv}
            module = self.keras.layers.MultiHeadAttention(heads, d, **made)
        else:
            module = self.keras.layers.GroupQueryAttention(d, heads, groups, **made)
        mask = settings.pop("visible", settings.pop("mask", None))
        if mask is not None:
            settings["attention_mask"] = self.torch.tensor(mask)
        if settings.pop("causal", False):
            settings["use_causal_mask"] = True
        inputs = self.tensors([q, k, v], dout)
        query, key, value = self.merged(inputs)
        module.build(*(tuple(x.shape) for x in (query, value, key)))
        for role in ("query", "key", "value", "output"):
            kernel = getattr(module, f"_{role}_dense").kernel
            kernel.assign(np.eye(math.isqrt(math.prod(kernel.shape))).reshape(kernel.shape))
        answer = module(
            query,
            value,
            key=key,
            training=not inference,
            return_attention_scores=weights,
            **settings,
        )
        out, shown = answer if weights else (answer, None)
        out = out.unflatten(2, (heads, dv)).movedim(2, 1)
        return self.answer(out, shown, dout, inputs)

    def layer(self, width, heads):
        made = self.keras.layers.MultiHeadAttention(heads, width // heads)
        made.build((1, 1, width), (1, 1, width))

        def call(*arrays):
            return made(*map(self.torch.tensor, arrays)).detach().numpy()

        return call, np.asarray(made.query_dense.kernel).reshape(width, -1)


class Onnx(Peer):
    name, package = "ONNX", "onnx"
    call = "onnx.reference.ReferenceEvaluator"
    note = "of one `Attention` node that `onnx.checker` has passed; no gradients"

    def __init__(self):
        self.onnx = importlib.import_module("onnx")
        self.reference = importlib.import_module("onnx.reference")

    def attend(self, q, k, v, *, bias=None, dout=None, weights=False, **settings):
        if dout is not None:
            raise NotOfferedError(NO_GRADIENTS)
        helper, given = self.onnx.helper, {"Q": q, "K": k, "V": v}
        settings.pop("inference", None)
        mask = settings.pop("visible", settings.pop("mask", bias))
        if mask is not None:
            given["attn_mask"] = mask
        if "causal" in settings:
            settings["is_causal"] = int(settings.pop("causal"))
        if (window := settings.pop("window", None)) is not None:
            settings |= {"left_window_size": window, "right_window_size": window}
        if weights:
            settings["qk_matmul_output_mode"] = 3
        if set(settings) - set(self.onnx.defs.get_schema("Attention").attributes):
            raise NotOfferedError
        outputs = ["Y", "", "", "weights"] if weights else ["Y"]
        node = helper.make_node("Attention", list(given), outputs, **settings)
        kinds = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            [node],
            "one",
            [helper.make_tensor_value_info(n, kinds(x.dtype), x.shape) for n, x in given.items()],
            [helper.make_tensor_value_info(n, kinds(q.dtype), [None] * 4) for n in outputs if n],
        )
        model = helper.make_model(graph)
        self.onnx.checker.check_model(model, full_check=True)
        return Answer(*self.reference.ReferenceEvaluator(model).run(None, given))


PEERS = (Minimha, TorchSdpa, TorchMha, Jax, Keras, Onnx)


# What the numbers are compared with, and the words for them.


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype("float32")


def qkv(t: int = T, s: int = S, h: int = H, d: int = D) -> list[np.ndarray]:
    return [draw(B, h, n, d, seed=i) for i, n in enumerate((t, s, s))]


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def expected(q, k, v, visible=True, bias=0.0, scale=None):
    """Attention in float64, for rows that have something to attend to."""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return softmax(np.where(visible, scale * q @ k.swapaxes(-1, -2) + bias, -np.inf)) @ v


def close(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


def which(out: np.ndarray, answers: dict[str, Any]) -> str:
    """The name of the first answer that the output equals."""
    if np.isnan(out).any():
        return "NaN"
    return next((name for name, x in answers.items() if close(out, x)), "something else")


def nans(gradients: tuple[np.ndarray, ...]) -> str:
    """How many numbers are not finite, of how many."""
    bad, size = (
        sum(int(n) for n in each)
        for each in zip(*((np.sum(~np.isfinite(g)), g.size) for g in gradients), strict=True)
    )
    return f"{bad}/{size} NaN" if bad else ""


def hidden_key(t: int = T, s: int = S) -> np.ndarray:
    """(T, S): no query may attend to key 2."""
    return np.broadcast_to(np.arange(s) != 2, (t, s)).copy()


def empty_row(t: int = T, s: int = S) -> np.ndarray:
    """(T, S): query 1 may attend to nothing."""
    return np.broadcast_to((np.arange(t) != 1)[:, None], (t, s)).copy()


# The experiments.

Experiment = Callable[[Any], str]
QUESTIONS: dict[str, Experiment] = {}
TOPICS: dict[str, list[str]] = {}  # the questions of each
ROUNDED: set[str] = set()  # questions whose answer rests on how this machine rounds sums


def ask(topic: str, question: str, rounded: bool = False) -> Callable[[Experiment], Experiment]:
    def enter(experiment: Experiment) -> Experiment:
        assert question not in QUESTIONS, question
        QUESTIONS[question] = experiment
        TOPICS.setdefault(topic, []).append(question)
        ROUNDED.update([question] * rounded)
        return experiment

    return enter


@ask("Masks", "boolean mask: True =")
def polarity(peer):
    q, k, v = qkv()
    mask = draw(T, S) > 0
    out = peer.attend(q, k, v, mask=mask).out
    return which(out, {"may attend": expected(q, k, v, mask), "hidden": expected(q, k, v, ~mask)})


def number_mask(peer, mask, seen):
    q, k, v = qkv()
    readings = {
        "added": expected(q, k, v, bias=mask),
        "as meant": expected(q, k, v, seen),
        "inverted": expected(q, k, v, ~seen),
    }
    return which(peer.attend(q, k, v, mask=mask).out, readings)


@ask("Masks", "0 / −1e9 floats as the mask")
def additive_mask(peer):
    seen = draw(T, S) > 0
    return number_mask(peer, np.where(seen, 0, -1e9).astype("float32"), seen)


@ask("Masks", "1 / 0 floats as the mask, 1 = visible")
def float_mask(peer):
    seen = draw(T, S) > 0
    return number_mask(peer, seen.astype("float32"), seen)


@ask("Masks", "1 / 0 integers as the mask, 1 = visible")
def integer_mask(peer):
    seen = draw(T, S) > 0
    return number_mask(peer, seen.astype("int32"), seen)


@ask("Masks", "a (B, S) mask where B = T is read as")
def bare_padding_mask(peer):
    q, k, v = qkv(t=B)
    mask = np.arange(S) < np.array([[3], [5]])  # each sequence its length
    readings = {
        f"{axes}{inverted}": expected(q, k, v, seen if not inverted else ~seen)
        for axes, seen in {"(T, S)": mask, "(B, S)": mask[:, None, None]}.items()
        for inverted in ("", ", inverted")
    }
    return which(peer.attend(q, k, v, mask=mask).out, readings)


@ask("Masks", "a (B, T, S) mask where B = H is read as")
def mask_without_heads(peer):
    q, k, v = qkv(h=B)
    seen = draw(B, T, S) > -0.5
    readings = {
        "(B, T, S)": expected(q, k, v, seen[:, None]),
        "(H, T, S)": expected(q, k, v, seen),
    }
    return which(peer.attend(q, k, v, mask=seen).out, readings)


@ask("Masks", "a (B, 1, 1, S) mask")
def broadcast_mask(peer):
    q, k, v = qkv()
    seen = (np.arange(S) < np.array([[3], [5]]))[:, None, None]
    return which(peer.attend(q, k, v, visible=seen).out, {"broadcasts": expected(q, k, v, seen)})


@ask("Masks", "`key_padding_mask`: True =")
def key_padding_mask(peer):
    q, k, v = qkv()
    mask = np.arange(S) < np.array([[3], [5]])
    seen = mask[:, None, None]
    out = peer.attend(q, k, v, key_padding_mask=mask).out
    return which(out, {"may attend": expected(q, k, v, seen), "hidden": expected(q, k, v, ~seen)})


def both_masks(peer, weights):
    q, k, v = qkv(t=S)
    seen, causal = np.arange(S) != 2, np.tri(S, dtype=bool)
    mask = np.broadcast_to(seen, (S, S)).copy()
    answers = {
        "both hold": expected(q, k, v, mask & causal),
        "causal is lost": expected(q, k, v, mask),
        "the mask is lost": expected(q, k, v, causal),
    }
    return which(peer.attend(q, k, v, visible=mask, causal=True, weights=weights).out, answers)


@ask("Masks", "a boolean mask and causal, together")
def mask_and_causal(peer):
    return both_masks(peer, weights=False)


@ask("Masks", "the same, weights asked for")
def mask_and_causal_with_weights(peer):
    return both_masks(peer, weights=True)


EMPTY = "A query with nothing to attend to"


def row_of_the_empty(out, v):
    """What query 1 got, which may attend to nothing."""
    return which(out[:, :, 1], {"0": np.zeros_like(out[:, :, 1]), "mean(V)": v.mean(-2)})


@ask(EMPTY, "boolean mask: output, weights not asked for")
def empty_output(peer):
    q, k, v = qkv()
    return row_of_the_empty(peer.attend(q, k, v, visible=empty_row(), weights=False).out, v)


@ask(EMPTY, "boolean mask: output, weights asked for")
def empty_output_with_weights(peer):
    q, k, v = qkv()
    return row_of_the_empty(peer.attend(q, k, v, visible=empty_row(), weights=True).out, v)


@ask(EMPTY, "boolean mask: output, for inference")
def empty_output_at_inference(peer):
    x = draw(B, 2, T, D)  # self-attention and an even H: what torch's fast path asks for
    settings = {"visible": empty_row(T, T), "inference": True, "weights": False}
    return row_of_the_empty(peer.attend(x, x, x, **settings).out, x)


@ask(EMPTY, "boolean mask: weights")
def empty_weights(peer):
    weights = peer.attend(*qkv(), visible=empty_row(), weights=True).weights
    row = weights[..., 1, :]
    return which(row, {"0": np.zeros_like(row), "1/S": np.full_like(row, 1 / S)})


def empty_gradient(peer, **settings):
    q, k, v = qkv()
    dout = np.zeros_like(q)
    dout[:, :, 1] = 1  # the empty query alone
    gradients = peer.attend(q, k, v, dout=dout, **settings).gradients[:3]
    reached = [n for n, g in zip("QKV", gradients, strict=True) if abs(g).max() > 1e-6]
    return nans(gradients) or ("reaches " + ", ".join(reached) if reached else "0")


@ask(EMPTY, "boolean mask: its gradient")
def empty_gradient_of_mask(peer):
    return empty_gradient(peer, visible=empty_row())


@ask(EMPTY, "bias −∞: output")
def minus_infinity_output(peer):
    q, k, v = qkv()
    bias = np.where(empty_row(), 0, -np.inf).astype("float32")
    return row_of_the_empty(peer.attend(q, k, v, bias=bias).out, v)


@ask(EMPTY, "bias −∞: its gradient")
def empty_gradient_of_bias(peer):
    bias = np.where(empty_row(), 0, -np.inf).astype("float32")
    return empty_gradient(peer, bias=bias)


@ask(EMPTY, "bias −1e9: output")
def minus_a_billion_output(peer):
    q, k, v = qkv()
    bias = np.where(empty_row(), 0, -1e9).astype("float32")
    return row_of_the_empty(peer.attend(q, k, v, bias=bias).out, v)


NAN = "NaN and infinity where nobody may look"


def leaks(peer, where, what):
    """How many queries a number reaches that stands at key 2, which is hidden from all."""
    q, k, v = qkv()
    (k if where == "key" else v)[:, :, 2] = what
    out = peer.attend(q, k, v, visible=hidden_key()).out
    reached = int((~np.isfinite(out)).any((0, 1, 3)).sum())
    return f"leaks ({reached}/{T})" if reached else "stays hidden"


def leaks_back(peer, where):
    q, k, v = qkv()
    (k if where == "key" else v)[:, :, 2] = np.nan
    gradients = peer.attend(q, k, v, visible=hidden_key(), dout=draw(B, H, T, D)).gradients
    return nans(gradients) or "stays hidden"


@ask(NAN, "NaN in a hidden value")
def nan_in_value(peer):
    return leaks(peer, "value", np.nan)


@ask(NAN, "infinity in a hidden value")
def infinity_in_value(peer):
    return leaks(peer, "value", np.inf)


@ask(NAN, "NaN in a hidden key")
def nan_in_key(peer):
    return leaks(peer, "key", np.nan)


@ask(NAN, "infinity in a hidden key")
def infinity_in_key(peer):
    return leaks(peer, "key", np.inf)


@ask(NAN, "NaN in a hidden value: gradients")
def nan_in_value_backward(peer):
    return leaks_back(peer, "value")


@ask(NAN, "NaN in a hidden key: gradients")
def nan_in_key_backward(peer):
    return leaks_back(peer, "key")


@ask(NAN, "NaN in the last value, causal: for earlier queries")
def nan_from_the_future(peer):
    q, k, v = qkv(t=S)
    v[:, :, -1] = np.nan
    reached = np.isnan(peer.attend(q, k, v, causal=True).out).any((0, 1, 3))
    return f"leaks ({reached[:-1].sum()}/{S - 1})" if reached[:-1].any() else "stays hidden"


@ask(NAN, "NaN in a query whose output is not used: gradients")
def nan_in_unused_query(peer):
    q, k, v = qkv()
    q[:, :, 1] = np.nan
    dout = draw(B, H, T, D)
    dout[:, :, 1] = 0
    dq, dk, dv = peer.attend(q, k, v, dout=dout).gradients
    return nans((np.delete(dq, 1, 2), dk, dv)) or "stay finite"


@ask(NAN, "a bias of +∞ on one key")
def plus_infinity(peer):
    q, k, v = qkv()
    bias = np.zeros((T, S), "float32")
    bias[..., 2] = np.inf
    only = np.broadcast_to(v[:, :, 2:3], q.shape)
    return which(peer.attend(q, k, v, bias=bias).out, {"that key alone": only})


ORDER = "Causal masks and windows"


def alignment(peer, t, s):
    q, k, v = qkv(t, s)
    with np.errstate(invalid="ignore"):
        rows = slice(max(0, t - s), None)  # the rows that see anything under both
        aligned = {
            name: expected(q, k, v, np.tri(t, s, offset, dtype=bool))[:, :, rows]
            for name, offset in {"top-left": 0, "bottom-right": s - t}.items()
        }
    return which(peer.attend(q, k, v, causal=True).out[:, :, rows], aligned)


@ask(ORDER, "causal, T < S: aligned")
def causal_wide(peer):
    return alignment(peer, 5, 7)


@ask(ORDER, "causal, T > S: aligned")
def causal_tall(peer):
    return alignment(peer, 7, 5)


def seen_keys(peer, t, s, **settings):
    """(T, S): which value reaches which query."""
    q, k, _ = qkv(t, s)
    v = np.broadcast_to(np.eye(s, dtype="float32"), (B, H, s, s))
    q, k = (np.pad(x, ((0, 0),) * 3 + ((0, s - D),)) for x in (q, k))  # D = Dv, for all
    return peer.attend(q, k, v, **settings).out[0, 0] > 1e-9


@ask(ORDER, "a window of 2: query i sees")
def window(peer):
    seen = np.flatnonzero(seen_keys(peer, 9, 9, window=2)[4]) - 4
    low, high = (f"i{n:+d}".replace("-", "−") if n else "i" for n in (seen.min(), seen.max()))
    return f"{low} … {high}"


@ask(ORDER, "a window, T < S: aligned")
def window_wide(peer):
    middle = np.flatnonzero(seen_keys(peer, 7, 10, window=2)[3]).mean()
    return {3: "top-left", 6: "bottom-right"}.get(middle, f"at {middle}")


SHAPES = "Heads and shapes"


@ask(SHAPES, "grouped heads: query head h reads")
def grouped_heads(peer):
    groups, heads = 2, 4
    q = draw(B, heads, T, D)
    k, v = draw(B, groups, S, D, seed=1), draw(B, groups, S, D, seed=2)
    orders = {"h // (H/G)": np.arange(heads) // 2, "h mod G": np.arange(heads) % groups}
    answers = {name: expected(q, k[:, h], v[:, h]) for name, h in orders.items()}
    return which(peer.attend(q, k, v).out, answers)


@ask(SHAPES, "Dv ≠ D")
def values_of_another_width(peer):
    q, k, _ = qkv()
    v = draw(B, H, S, D + 2)
    return which(peer.attend(q, k, v).out, {"yes": expected(q, k, v)})


@ask(SHAPES, "T = 0")
def no_queries(peer):
    out = peer.attend(*qkv(t=0)).out
    return "empty" if out.shape == (B, H, 0, D) else f"shape {out.shape}"


@ask(SHAPES, "S = 0: output")
def no_keys(peer):
    return which(peer.attend(*qkv(s=0)).out, {"0": np.zeros((B, H, T, D))})


@ask(SHAPES, "S = 0: gradient of the query")
def no_keys_backward(peer):
    q, k, v = qkv(s=0)
    gradient = peer.attend(q, k, v, dout=draw(B, H, T, D)).gradients[0]
    return which(gradient, {"0": np.zeros_like(q)})


@ask(SHAPES, "D = 0")
def no_width(peer):
    q, k, v = (draw(B, H, n, d) for n, d in ((T, 0), (S, 0), (S, D)))
    out = peer.attend(q, k, v).out
    return which(out, {"mean(V)": np.broadcast_to(v.mean(-2, keepdims=True), out.shape)})


SCORES = "Scale, softcap, bias and sink"


@ask(SCORES, "scale left out")
def default_scale(peer):
    q, k, v = qkv()
    answers = {"1/√D": D**-0.5, "1/D": 1 / D, "1": 1}
    return which(
        peer.attend(q, k, v).out, {n: expected(q, k, v, scale=s) for n, s in answers.items()}
    )


def scaled(peer, scale):
    q, k, v = qkv()
    answers = {"as said": expected(q, k, v, scale=scale), "1/√D instead": expected(q, k, v)}
    return which(peer.attend(q, k, v, scale=scale).out, answers)


@ask(SCORES, "scale = 0")
def scale_zero(peer):
    return scaled(peer, 0.0)


@ask(SCORES, "scale = −1")
def scale_negative(peer):
    return scaled(peer, -1.0)


@ask(SCORES, "float32 with scale = np.float64(0.5)")
def scale_of_numpy(peer):
    return str(peer.attend(*qkv(), scale=np.float64(0.5)).out.dtype)


@ask(SCORES, "softcap and bias: which first")
def softcap(peer):
    q, k, v = qkv()
    bias = 2 * draw(T, S)
    scores, cap = (q @ k.swapaxes(-1, -2)) / math.sqrt(D), 1.5
    answers = {
        "softcap first": softmax(cap * np.tanh(scores / cap) + bias) @ v,
        "bias first": softmax(cap * np.tanh((scores + bias) / cap)) @ v,
    }
    return which(peer.attend(q, k, v, bias=bias, softcap=cap).out, answers)


def sinking(peer, logits):
    q, k, v = qkv()
    scores = (q @ k.swapaxes(-1, -2)) / math.sqrt(D)
    e, s = np.exp(scores), np.exp(logits)[:, None, None]
    answer = e / (e.sum(-1, keepdims=True) + s) @ v
    return which(peer.attend(q, k, v, sink=logits).out, {"offered": answer})


@ask(SCORES, "softcap = 0")
def softcap_of_zero(peer):
    q, k, v = qkv()
    out = peer.attend(q, k, v, softcap=0.0).out
    mean = np.broadcast_to(v.mean(-2, keepdims=True), out.shape)
    return which(out, {"no cap": expected(q, k, v), "mean(V)": mean})


@ask(SCORES, "a sink of logit 0")
def sink_of_zero(peer):
    return sinking(peer, np.zeros(H, "float32"))


@ask(SCORES, "a sink of any logit, a head each")
def sink(peer):
    return sinking(peer, draw(H))


@ask(SCORES, "the bias gets a gradient")
def bias_gradient(peer):
    q, k, v = qkv()
    bias = draw(T, S)
    gradient = peer.attend(q, k, v, bias=bias, dout=draw(B, H, T, D)).gradients[3]
    return "yes" if abs(gradient).max() > 1e-3 else "zeros"


@ask(SCORES, "scores of 10⁴")
def large_scores(peer):
    q, k, v = qkv()
    q, k = 100 * q, 100 * k
    out = peer.attend(q, k, v).out
    return "right" if close(out, expected(q, k, v), 2e-2) else which(out, {})


@ask(SCORES, "scores beyond float32")
def overflowing_scores(peer):
    q, k, v = qkv()
    out = peer.attend(1e20 * q, 1e20 * k, v).out
    return "NaN" if np.isnan(out).any() else "finite"


DTYPES = "Dtypes"


def width(peer, *dtypes):
    arrays = [x.astype(dtype) for x, dtype in zip(qkv(), dtypes, strict=True)]
    return str(peer.attend(*arrays).out.dtype)


@ask(DTYPES, "float32 in: out comes")
def float32(peer):
    return width(peer, *["float32"] * 3)


@ask(DTYPES, "float64 in: out comes")
def float64(peer):
    q, k, v = (x.astype("float64") for x in qkv())
    out = peer.attend(q, k, v).out
    coarse = abs(out - expected(q, k, v)).max() > 1e-10
    return f"{out.dtype}, float32 inside" if coarse and out.dtype == "float64" else str(out.dtype)


@ask(DTYPES, "float32 query, float64 key and value")
def mixed(peer):
    return width(peer, "float32", "float64", "float64")


@ask(DTYPES, "float16 query, float32 key and value")
def mixed_half(peer):
    return width(peer, "float16", "float32", "float32")


@ask(DTYPES, "integers")
def integers(peer):
    return width(peer, *["int32"] * 3)


@ask(DTYPES, "complex64")
def complex_numbers(peer):
    return width(peer, *["complex64"] * 3)


@ask(DTYPES, "float16: mean of 332 223 ones", rounded=True)
def half_sums(peer):
    q, k = np.zeros((1, 1, 1, D), "float16"), np.zeros((1, 1, 332_223, D), "float16")
    return f"{peer.attend(q, k, np.ones_like(k)).out.mean():.2f}"  # a weight is 50.5 · 2⁻²⁴


@ask(DTYPES, "float16: QKᵀ is 10⁵, scaled 10⁴", rounded=True)
def half_overflow(peer):
    q = np.full((1, 1, 2, 100), 32, "float16")  # 100 · 32² = 102400 > 65504
    out = peer.attend(q, q, np.ones_like(q)).out
    return "finite" if np.isfinite(out).all() else "NaN"


WEIGHTS = "Weights and dropout"


@ask(WEIGHTS, "weights come as")
def shape_of_weights(peer):
    q, k, v = qkv()
    weights = peer.attend(q, k, v, weights=True).weights
    right = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(D))
    return which(weights, {"(B, H, T, S)": right, "mean over heads": right.mean(1)})


def with_and_without(peer, inference):
    x = draw(B, 2, 64, 32)  # self-attention and an even H: what torch's fast path asks for
    plain, asked = (peer.attend(x, x, x, weights=w, inference=inference).out for w in (False, True))
    if np.array_equal(plain, asked):
        return "bit for bit"
    return "but for rounding" if close(plain, asked) else "no"


@ask(WEIGHTS, "asking for them leaves the output the same", rounded=True)
def same_output(peer):
    return with_and_without(peer, inference=False)


@ask(WEIGHTS, "the same, for inference", rounded=True)
def same_output_at_inference(peer):
    return with_and_without(peer, inference=True)


def dropped(peer, p, **settings):
    """The weights after dropout, which the output shows where V is the identity; undropped ones."""
    q, k = draw(1, 2, 64, 32), draw(1, 2, 32, 32, seed=1)
    v = np.broadcast_to(np.eye(32, dtype="float32"), (1, 2, 32, 32)).copy()
    answer = peer.attend(q, k, v, dropout=p, **settings)
    return answer, softmax(q @ k.swapaxes(-1, -2) / math.sqrt(32))


def after_dropout(peer, p):
    answer, weights = dropped(peer, p)
    if not np.isfinite(answer.out).all():
        return "NaN"
    kept = answer.out != 0
    if not kept.any():
        return "zeros"
    if kept.all():
        return "no dropout" if close(answer.out, weights) else "something else"
    factor = (answer.out / weights)[kept]
    return f"times {factor.mean():.1f}" if factor.std() < 1e-3 else "something else"


@ask(WEIGHTS, "dropout 0.5: what is kept is")
def dropout_scale(peer):
    return after_dropout(peer, 0.5)


@ask(WEIGHTS, "dropout 0.5: weights come")
def dropout_of_weights(peer):
    answer, _ = dropped(peer, 0.5, weights=True)
    return "after dropout" if (answer.weights == 0).any() else "before dropout"


@ask(WEIGHTS, "dropout 0.5, for inference")
def dropout_at_inference(peer):
    answer, _ = dropped(peer, 0.5, inference=True)
    return "dropped" if (answer.out == 0).any() else "no dropout"


@ask(WEIGHTS, "dropout 1")
def dropout_of_all(peer):
    return after_dropout(peer, 1.0)


@ask(WEIGHTS, "dropout 1.5")
def dropout_beyond_one(peer):
    return after_dropout(peer, 1.5)


@ask(WEIGHTS, "dropout −0.1")
def dropout_negative(peer):
    return after_dropout(peer, -0.1)


LAYERS = "Layers"


def output(answer):
    """The output of a layer's answer, as a host array."""
    out = answer[0] if isinstance(answer, tuple) else answer
    return np.asarray(getattr(out, "data", out))


@ask(LAYERS, "x of three axes, nothing else said: attends over")
def axis_of_positions(peer):
    layer, _ = peer.layer(12, 2)
    x = draw(3, 5, 12)
    moved = x.copy()
    moved[1, 2] += 1
    changed = (output(layer(moved, moved, moved)) != output(layer(x, x, x))).any(-1)
    return "axis 1" if changed[1].all() and not changed[0].any() else "axis 0"


@ask(LAYERS, "layer(a, b, c) takes them for")
def order_of_arguments(peer):
    layer, _ = peer.layer(12, 2)
    q, a, b = draw(1, 5, 12), draw(1, 5, 12, seed=1), draw(1, 5, 12, seed=2)
    equal = np.broadcast_to(b[:, :1], b.shape).copy()  # equal values: keys do not matter
    same = close(output(layer(q, a, equal)), output(layer(q, b, equal)))
    return "query, key, value" if same else "query, value, key"


@ask(LAYERS, "a call returns")
def what_a_call_returns(peer):
    layer, _ = peer.layer(12, 2)
    x = draw(1, 5, 12)
    return "(out, weights)" if isinstance(layer(x, x, x), tuple) else "out"


@ask(LAYERS, "width 10, 3 heads")
def indivisible(peer):
    layer, w_q = peer.layer(10, 3)
    x = draw(1, 5, 10)
    layer(x, x, x)
    return f"heads of {w_q.shape[1] // 3}"


@ask(LAYERS, "fresh W^Q: its standard deviation times √M")
def spread_of_fresh_weights(peer):
    width = 256
    _, w_q = peer.layer(width, 4)
    return f"{w_q.std() * math.sqrt(width):.1f}"


@ask(LAYERS, "gradient of a bias on all keys (is 0)", rounded=True)
def gradient_of_key_bias(peer):
    dk = peer.attend(*qkv(), dout=draw(B, H, T, D)).gradients[1].sum(-2)
    return "exactly 0" if not dk.any() else "rounding" if abs(dk).max() < 1e-5 else "not 0"


# The verdicts, and the page.

Verdicts = dict[tuple[str, str], str]  # of question and column


def verdict(experiment: Experiment, peer: Peer | None, errors: bool = False) -> str:
    if peer is None:
        return ABSENT
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return experiment(peer)
    except NotOfferedError as why:
        return str(why) or NOT_OFFERED
    except Exception as error:
        if errors:
            print(f"{peer.name}, {experiment.__name__}: {type(error).__name__}: {error}")
        if isinstance(error, TypeError) and "unexpected keyword" in str(error):
            return NOT_OFFERED
        return type(error).__name__


def installed(kind: type[Peer]) -> Peer | None:
    try:
        return kind()
    except ImportError:
        return None


def version_of(kind: type[Peer]) -> str:
    try:
        return version(kind.package).partition("+")[0]
    except PackageNotFoundError:  # minimha may come from a clone
        return mh.__version__ if kind is Minimha else ABSENT


# What to tell who ports code, and the verdicts that it rests on. The page is not written where one
# of them no longer holds.
ADVICE: dict[str, dict[str, str]] = {
    "Say a mask's polarity where it is made. The same boolean array means the opposite to torch's "
    "SDPA and to torch's `MultiheadAttention`.": {
        "polarity": "torch SDPA: may attend; torch MHA: hidden",
    },
    "Do not hand an additive mask to keras: it is cast to boolean, so that 0 hides and −1e9 shows. "
    "Do not hand zeros and ones as floats to torch or ONNX: they are added to the scores, and hide "
    "nothing.": {
        "additive_mask": "keras: inverted",
        "float_mask": "torch SDPA: added; torch MHA: added; ONNX: added",
    },
    "Give a padding mask its axes, (B, 1, 1, S). As (B, S) it is taken for (T, S) without a word "
    "by every peer, as soon as B = T. torch's layer refuses four axes: it has `key_padding_mask`, "
    "where True = hidden again.": {
        "bare_padding_mask": "torch SDPA: (T, S); torch MHA: (T, S), inverted; jax: (T, S); "
        "keras: (T, S); ONNX: (T, S)",
        "broadcast_mask": "torch MHA: AssertionError; torch SDPA: broadcasts; jax: broadcasts; "
        "keras: broadcasts; ONNX: broadcasts",
        "key_padding_mask": "torch MHA: hidden",
    },
    "A mask of three axes is (B, T, S) to keras and (H, T, S) to the functions, so write all four. "
    "Here it is refused where it could be either, B = H.": {
        "mask_without_heads": "keras: (B, T, S); torch SDPA: (H, T, S); jax: (H, T, S); "
        "ONNX: (H, T, S); minimha: ValueError",
    },
    "Find the queries that may attend to nothing before you port. keras gives them mean(V), or 0 "
    "once weights are asked for; torch's layer 0, or NaN once weights are asked for, and NaN in "
    "`eval()` whether they are or not. In jax their gradient reaches the values.": {
        "empty_output": "torch MHA: 0; keras: mean(V)",
        "empty_output_with_weights": "torch MHA: NaN; keras: 0",
        "empty_output_at_inference": "torch MHA: NaN",
        "empty_gradient_of_mask": "jax: reaches V",
    },
    "−1e9 is not −∞: added to a whole row it changes no weight in exact numbers, and in float32 "
    "it rounds the scores away, which leaves mean(V), here as elsewhere.": {
        "minus_a_billion_output": "minimha: mean(V); torch SDPA: mean(V); torch MHA: mean(V); "
        "jax: mean(V); ONNX: mean(V)",
    },
    "Overwrite NaN in padded positions before you call a peer: a mask does not stop it, since "
    "0 · NaN = NaN.": {
        "nan_in_value": "torch SDPA: leaks (5/5); torch MHA: leaks (5/5); "
        "jax: leaks (5/5); keras: leaks (5/5); ONNX: leaks (5/5)",
    },
    "With T ≠ S the peers mean top-left by causal. To decode with a cache you want bottom-right, "
    "and have to build that mask.": {
        "causal_wide": "torch SDPA: top-left; jax: top-left; keras: top-left; ONNX: top-left",
    },
    "To torch's `MultiheadAttention`, `is_causal` is a hint: it wants the causal mask besides. "
    "Given another mask, it loses one of the two without a word: causal once weights are asked "
    "for, the mask where they are not.": {
        "mask_and_causal": "torch MHA: the mask is lost",
        "mask_and_causal_with_weights": "torch MHA: causal is lost",
        "causal_wide": "torch MHA: RuntimeError",
    },
    "A window of n reaches n keys to each side in jax and ONNX, n − 1 in keras.": {
        "window": "jax: i−2 … i+2; ONNX: i−2 … i+2; keras: i−1 … i+1",
    },
    "float64 is not kept by all: jax computes its softmax in float32 under a float64 result, "
    "keras casts to the layer's dtype.": {
        "float64": "jax: float64, float32 inside; keras: float32",
    },
    "`eval()` does not reach a function: torch's SDPA drops whatever p it is given.": {
        "dropout_at_inference": "torch SDPA: dropped; torch MHA: no dropout",
    },
    "Weights are not the same thing: torch's layer returns the mean over heads, after dropout; "
    "keras each head, before it.": {
        "dropout_of_weights": "torch MHA: after dropout; keras: before dropout",
        "shape_of_weights": "torch MHA: mean over heads; keras: (B, H, T, S)",
    },
    "Name the arguments. keras takes query, value, key; torch's layer takes axis 0 for positions "
    "unless `batch_first=True`, and returns a pair.": {
        "order_of_arguments": "keras: query, value, key",
        "axis_of_positions": "torch MHA: axis 0",
        "what_a_call_returns": "torch MHA: (out, weights)",
    },
}

TITLE = """# Where libraries disagree

The same question, put to each library with the same numbers. The verdicts are computed from what
came back, by experiments of a few lines that stand under each table; a name of an error means that
this error was raised, *not offered* that there is no such setting, *leaks (5/5)* that five of five
queries were reached, *12/40 NaN* that so many of so many numbers were not finite. All on the CPU;
the rows marked † rest on how sums are rounded, and may read otherwise on another machine, the
others should not. Letters as everywhere: B batch, H query heads, G key/value heads, T query
positions, S key positions, D head width of queries and keys, Dv of values, M model width.

To write this page again, with the peers installed:

```sh
python benchmarks/disagreements.py --save docs/disagreements.md
```

"""


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def page(verdicts: Verdicts, versions: dict[str, str]) -> str:
    questions = {experiment.__name__: q for q, experiment in QUESTIONS.items()}
    columns = [kind.name for kind in PEERS]
    text = TITLE + table(
        ["column", "version", "what is called"],
        [[k.name, versions[k.name], f"`{k.call}`{k.note and ', ' + k.note}"] for k in PEERS],
    )
    for topic, asked in TOPICS.items():
        rows = [[q + " †" * (q in ROUNDED), *(verdicts[q, c] for c in columns)] for q in asked]
        code = "\n\n".join(inspect.getsource(QUESTIONS[q]) for q in asked)
        text += f"\n## {topic}\n\n{table(['', *columns], rows)}\n"
        text += (
            f"<details><summary>The experiments</summary>\n\n```python\n{code}```\n\n</details>\n"
        )
    text += "\n## What this means when you port code\n\n"
    for advice, grounds in ADVICE.items():
        for name, ground in grounds.items():
            for column, said in (one.split(": ", 1) for one in ground.split("; ")):
                found = verdicts[questions[name], column]
                if found not in (said, ABSENT):
                    raise ValueError(f"{name}, {column}: {found}, so this is wrong: {advice}")
        text += f"- {advice}\n"
    return text


def read(text: str) -> tuple[Verdicts, dict[str, str]]:
    """The verdicts and versions of a written page."""
    verdicts, versions, columns = {}, {}, [kind.name for kind in PEERS]
    for line in text.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        if first.removesuffix(" †") in QUESTIONS and len(cells) == len(columns):
            question = first.removesuffix(" †")
            verdicts |= {(question, c): said for c, said in zip(columns, cells, strict=True)}
        elif first in columns and len(cells) == 2:
            versions[first] = cells[0]
    return verdicts, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="all questions by default")
    parser.add_argument("--save", type=pathlib.Path, help="write the page to a file")
    parser.add_argument("--errors", action="store_true", help="print what each error said")
    options = parser.parse_args()
    if options.words and options.save:
        parser.error("a page has all the questions: --save goes without words")
    peers = {kind.name: installed(kind) for kind in PEERS}
    verdicts = {}
    for topic, asked in TOPICS.items():
        rows = []
        for q in asked:
            if options.words and not any(word in q for word in options.words):
                continue
            row = {
                (q, name): verdict(QUESTIONS[q], peer, options.errors)
                for name, peer in peers.items()
            }
            rows.append([q, *row.values()])
            verdicts |= row
        if rows:
            print(f"\n{topic}\n\n{table(['', *peers], rows)}")
    if options.save:
        versions = {kind.name: version_of(kind) for kind in PEERS}
        options.save.write_text(page(verdicts, versions), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Models that learn, in which `mh.diagnose` must find nothing: functions as in `broken_models`."""

import math
from functools import partial

import numpy as np
from student_models import *

import minimha as mh
from minimha import functional, ops

HEALTHY = {}


def healthy(make):
    return HEALTHY.setdefault(make.__name__, make)


def changed(name, **changes):
    """Add a student's model with these methods and attributes in place of its own."""
    HEALTHY[name] = partial(student, **changes)


def started(**changes):
    """Add a student's model with these changes, whose weights the function may change."""
    return lambda edit: HEALTHY.setdefault(edit.__name__, edited(edit, **changes))


def of_gpt(name, **settings):
    """Add a GPT with these settings."""
    HEALTHY[name] = lambda seed: (gpt(seed, **settings), *batch(seed))


LLAMA = {"norm": "rms", "activation": "swiglu", "bias": False, "num_kv_heads": 1}
of_gpt("default_gpt")
of_gpt("tied_gpt_without_biases", tie=True, bias=False)
of_gpt("llama", rope=mh.positions.Rope(), **LLAMA)
of_gpt("gpt_in_float64", dtype="float64", activation="relu")
of_gpt("deep_gpt", num_layers=8)
of_gpt("half_precision", dtype="float16")


@healthy
def wide_logits_of_variance_one(seed):
    model = gpt(seed)
    model.head.weight.data = model.head.weight.data / 0.02 / math.sqrt(M)
    return model, *batch(seed)


changed("own_language_model")
changed("own_model_with_one_layer", layers=1)


def scores_that_are_kept(self, q, k):
    self.kept = Attention.scores(self, q, k)
    return self.kept


@started(attention={"scores": scores_that_are_kept})
def own_model_that_keeps_its_weights(model):
    model(np.arange(T)[None])


def with_a_new_leaf(self, tokens):
    leaf = mh.Tensor(np.zeros(M, "float32"), requires_grad=True)
    return Student.embed(self, tokens) + leaf


changed("own_model_with_a_new_leaf_in_each_call", model={"embed": with_a_new_leaf})


@started()
def residual_branches_start_at_zero(model):
    for block in model.blocks:
        for linear in (block.attention.out, block.narrow):
            linear.weight.data = 0 * linear.weight.data


PERCEPTRONS = {
    "embed": lambda self, tokens: ops.maximum(self.first(Student.embed(self, tokens)), 0),
    "logits": lambda self, x: self.head(ops.maximum(self.last(x), 0)),
}


@started(model=PERCEPTRONS)
def perceptrons_before_and_after_the_blocks(model):
    model.first, model.last = (mh.Linear(M, M, rng=k) for k in range(2))


@started()
def head_starts_at_zero(model):
    model.head.weight.data = 0 * model.head.weight.data


def log_softmax(self, x):
    logits = self.head(x)
    return logits - logits.logsumexp(axis=-1, keepdims=True)


changed("log_probabilities", model={"logits": log_softmax})


@healthy
def trained_gpt(seed):
    tokens = np.random.default_rng(seed).integers(0, V, 300)
    model = gpt(seed, activation="relu")
    optimiser = mh.AdamW(model.parameters(), lr=3e-3)
    rng = np.random.default_rng(seed)
    for _ in range(200):
        starts = rng.integers(0, len(tokens) - T - 1, B)
        x = tokens[starts[:, None] + np.arange(T + 1)]
        optimiser.zero_grad()
        functional.cross_entropy(model(x[:, :-1]), x[:, 1:]).backward()
        optimiser.step()
    return model, x[:, :-1], x[:, 1:]


@healthy
def bigram_model(seed):
    class Bigram(mh.Module):
        def __init__(self):
            self.table = mh.Embedding(V, V, std=0.1, rng=seed)

        def __call__(self, tokens):
            return self.table(tokens)

    x = np.tile(np.random.default_rng(seed).permutation(V)[: T + 1], (B, 1))
    return Bigram(), x[:, :-1], x[:, 1:]


@healthy
def attention_in_every_form(seed):
    model, *rest = student(seed)
    forms = ["double", "bilinear"] if seed % 2 else ["fused", "per-head"]
    for block, form in zip(model.blocks, forms, strict=True):
        mha = mh.MultiHeadAttention(M, H, form=form, bias=False, rng=seed + len(form))
        block.attention = Causal(mha)
    return model, *rest


class Causal(mh.Module):
    """An attention layer that brings its mask."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return self.layer(x, mask=mh.masks.causal())


@started(model={"embed": lambda self, tokens: self.tokens(tokens)})
def alibi_in_place_of_embedded_positions(model):
    model.places = None
    for k, block in enumerate(model.blocks):
        block.attention = Causal(mh.MultiHeadAttention(M, H, alibi=True, rng=k))


def normed_after(self, x):
    x = self.norms[0](x + self.attention(x))
    return self.norms[1](x + self.narrow(self.activation(self.widen(x))))


changed("post_norm", block={"__call__": normed_after})


@healthy
def encoder_classifier(seed):
    return Classifier(seed), *classified(seed)


@healthy
def padded_classifier_that_masks(seed):
    return Masking(seed), *padded(seed), {"padding": 0}


@healthy
def padded_language_model(seed):
    x, _ = padded(seed)
    return gpt(seed), x[:, :-1], x[:, 1:], {"padding": 0}


@healthy
def images_as_sequences_of_rows(seed):
    def embed(self, rows):
        return self.linear(mh.Tensor(rows)) + self.places(np.arange(rows.shape[1]))

    rng = np.random.default_rng(seed)
    model = like(Classifier, {"embed": embed})(seed)
    model.table, model.linear = None, mh.Linear(8, M, rng=rng)
    return model, rng.random((8, T, 8)).astype("float32"), rng.integers(0, 4, 8)


@healthy
def a_model_that_tags_each_token(seed):
    tag = {"__call__": lambda self, x: self.head(self.norm(self.block(self.embed(x))))}
    x, _ = classified(seed)
    return like(Classifier, tag)(seed), x, x % 4

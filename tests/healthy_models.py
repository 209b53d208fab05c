"""Models that learn, in which `mh.diagnose` must find nothing: functions as in `broken_models`."""

import math

import numpy as np
from student_models import (
    Attention,
    B,
    Block,
    Classifier,
    H,
    M,
    Masking,
    Student,
    T,
    V,
    batch,
    classified,
    gpt,
    padded,
    student,
)

import minimha as mh
from minimha import functional, ops

HEALTHY = {}


def healthy(make):
    return HEALTHY.setdefault(make.__name__, make)


@healthy
def default_gpt(seed):
    return gpt(seed), *batch(seed)


@healthy
def tied_gpt_without_biases(seed):
    return gpt(seed, tie=True, bias=False), *batch(seed)


@healthy
def llama(seed):
    rope = mh.positions.Rope()
    settings = {"norm": "rms", "activation": "swiglu", "bias": False, "num_kv_heads": 1}
    return gpt(seed, rope=rope, **settings), *batch(seed)


@healthy
def gpt_in_float64(seed):
    return gpt(seed, dtype="float64", activation="relu"), *batch(seed)


@healthy
def deep_gpt(seed):
    return gpt(seed, num_layers=8), *batch(seed)


@healthy
def wide_logits_of_variance_one(seed):
    model = gpt(seed)
    model.head.weight.data = model.head.weight.data / 0.02 / math.sqrt(M)
    return model, *batch(seed)


@healthy
def own_language_model(seed):
    return student(seed)


@healthy
def own_model_that_keeps_its_weights(seed):
    class Keeping(Attention):
        def scores(self, q, k):
            self.kept = super().scores(q, k)
            return self.kept

    model, x, y = student(seed, attention=Keeping)
    model(x)
    return model, x, y


@healthy
def own_model_with_a_new_leaf_in_each_call(seed):
    class Watched(Student):
        def embed(self, tokens):
            return super().embed(tokens) + mh.Tensor(np.zeros(M, "float32"), requires_grad=True)

    return student(seed, Watched)


@healthy
def own_model_with_one_layer(seed):
    return student(seed, layers=1)


@healthy
def residual_branches_start_at_zero(seed):
    model, *rest = student(seed)
    for block in model.blocks:
        for linear in (block.attention.out, block.narrow):
            linear.weight.data = 0 * linear.weight.data
    return model, *rest


@healthy
def perceptrons_before_and_after_the_blocks(seed):
    class Deeper(Student):
        def __init__(self, seed, *settings):
            super().__init__(seed, *settings)
            self.first = mh.Linear(M, M, rng=seed)
            self.last = mh.Linear(M, M, rng=seed + 1)

        def embed(self, tokens):
            return ops.maximum(self.first(super().embed(tokens)), 0)

        def logits(self, x):
            return self.head(ops.maximum(self.last(x), 0))

    return student(seed, Deeper)


@healthy
def head_starts_at_zero(seed):
    model, *rest = student(seed)
    model.head.weight.data = 0 * model.head.weight.data
    return model, *rest


@healthy
def log_probabilities(seed):
    class Logs(Student):
        def logits(self, x):
            logits = self.head(x)
            return logits - logits.logsumexp(axis=-1, keepdims=True)

    return student(seed, Logs)


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


@healthy
def alibi_in_place_of_embedded_positions(seed):
    class Unplaced(Student):
        def embed(self, tokens):
            return self.tokens(tokens)

    model, *rest = student(seed, Unplaced)
    model.places = None
    for k, block in enumerate(model.blocks):
        block.attention = Causal(mh.MultiHeadAttention(M, H, alibi=True, rng=seed + k))
    return model, *rest


@healthy
def post_norm(seed):
    class After(Block):
        def __call__(self, x):
            x = self.norms[0](x + self.attention(x))
            return self.norms[1](x + self.narrow(self.activation(self.widen(x))))

    return student(seed, block=After)


@healthy
def half_precision(seed):
    return gpt(seed, dtype="float16"), *batch(seed)


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
    class Rows(Classifier):
        def embed(self, rows):
            return self.linear(mh.Tensor(rows)) + self.places(np.arange(rows.shape[1]))

    rng = np.random.default_rng(seed)
    model = Rows(seed)
    model.table, model.linear = None, mh.Linear(8, M, rng=rng)
    return model, rng.random((8, T, 8)).astype("float32"), rng.integers(0, 4, 8)


@healthy
def a_model_that_tags_each_token(seed):
    class Tagger(Classifier):
        def __call__(self, tokens):
            return self.head(self.norm(self.block(self.embed(tokens))))

    x, _ = classified(seed)
    return Tagger(seed), x, x % 4

"""Models that do not learn, and what `mh.diagnose` must find first in each.

Each entry is a function of a seed that returns a model, inputs and targets, and perhaps settings.
"""

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

BROKEN = {}


def broken(finding):
    """Add a broken model, and the finding that must come first."""
    return lambda make: BROKEN.setdefault(make.__name__, (finding, make))


# --- data -----------------------------------------------------------------------------------------


@broken("targets not shifted")
def targets_are_the_inputs(seed):
    x, _ = batch(seed)
    return gpt(seed), x, x


@broken("targets shifted the wrong way")
def targets_are_the_previous_tokens(seed):
    x, y = batch(seed)
    return gpt(seed), y, x


@broken("targets shifted too far")
def targets_are_shifted_twice(seed):
    tokens = np.random.default_rng(seed).integers(0, V, (B, T + 2))
    return gpt(seed), tokens[:, :-2], tokens[:, 2:]


# --- outputs --------------------------------------------------------------------------------------


@broken("softmax before cross entropy")
def returns_probabilities(seed):
    class Probabilities(Student):
        def logits(self, x):
            return functional.softmax(self.head(x))

    return student(seed, Probabilities)


@broken("loss above log(vocabulary)")
def tied_table_of_standard_deviation_one(seed):
    model = gpt(seed, tie=True)
    model.tokens.table.data = 50 * model.tokens.table.data
    return model, *batch(seed)


@broken("not finite")
def an_empty_row_of_minus_infinity(seed):
    class Empty(Attention):
        def __call__(self, x):
            q, k, v = (self.split(f(x)) for f in self.qkv)
            visible = mh.masks.causal(offset=-1).array((T, T))
            scores = ops.where(visible, self.scores(q, k), -math.inf)
            e = ops.exp(scores - scores.max(axis=-1, keepdims=True))
            return self.out(self.merge(e / e.sum(axis=-1, keepdims=True) @ v))

    return student(seed, attention=Empty)


@broken("not finite")
def weights_are_nan(seed):
    model = gpt(seed)
    model.blocks[1].mlp.widen.weight.data = math.nan * model.blocks[1].mlp.widen.weight.data
    return model, *batch(seed)


@broken("not deterministic")
def dropout_is_always_on(seed):
    rng = np.random.default_rng(seed)

    class Dropping(Student):
        def embed(self, tokens):
            return mh.Dropout(0.2)(super().embed(tokens), rng)

    return student(seed, Dropping)


@broken("dtype drift")
def goes_on_in_float64(seed):
    class Wide(Block):
        def activation(self, x):
            return functional.gelu(x.astype("float64")).astype("float32")

    return student(seed, block=Wide)


@broken("dtype drift")
def one_layer_of_float64(seed):
    class Mixed(Student):
        def logits(self, x):
            return self.head(x.astype("float64"))

    model, *rest = student(seed, Mixed)
    model.head = mh.Linear(M, V, std=0.1, dtype="float64")
    return model, *rest


# --- what is visible ------------------------------------------------------------------------------


@broken("leak from the future")
def no_mask(seed):
    class Unmasked(Attention):
        mask = None

    return student(seed, attention=Unmasked)


@broken("leak from the future")
def mask_off_by_one(seed):
    class Late(Attention):
        mask = mh.masks.causal(offset=1)

    return student(seed, attention=Late)


@broken("leak from the future")
def norm_over_positions(seed):
    class Normed(Block):
        def __call__(self, x):
            return super().__call__(x - x.mean(axis=1, keepdims=True))

    return student(seed, block=Normed)


@broken("leak from the future")
def masked_after_softmax(seed):
    class After(Attention):
        def __call__(self, x):
            q, k, v = (self.split(f(x)) for f in self.qkv)
            weights = functional.softmax(self.scores(q, k)) * np.tril(np.ones((T, T), "float32"))
            return self.out(self.merge(weights @ v))

    return student(seed, attention=After)


@broken("mask the wrong way round")
def mask_inverted(seed):
    class Inverted(Attention):
        mask = ~mh.masks.causal(offset=-1)

    return student(seed, attention=Inverted)


@broken("past without influence")
def each_query_sees_only_itself(seed):
    class Alone(Attention):
        mask = mh.masks.causal() & ~mh.masks.causal(offset=-1)

    return student(seed, attention=Alone)


@broken("softmax over the wrong axis")
def softmax_over_queries(seed):
    class Columns(Attention):
        axis = -2

    return student(seed, attention=Columns)


@broken("past without influence")
def heads_split_without_a_transpose(seed):
    class Reshaped(Attention):
        def split(self, x):
            return x.reshape(x.shape[0], H, x.shape[1], M // H)

        def merge(self, heads):
            return heads.reshape(heads.shape[0], heads.shape[2], M)

    return student(seed, attention=Reshaped)


@broken("sequences of a batch mix")
def heads_by_reshape(seed):
    class Reshaped(Attention):
        def split(self, x):
            return x.reshape(H, x.shape[0], x.shape[1], M // H).transpose(0, 1)

        def merge(self, heads):
            return heads.reshape(heads.shape[0], heads.shape[2], M)

    return student(seed, attention=Reshaped)


@broken("no positions")
def no_positions(seed):
    class Unordered(Student):
        def embed(self, tokens):
            return self.tokens(tokens) + 0.0 * self.places(np.arange(tokens.shape[1]))

    return student(seed, Unordered)


@broken("no positions")
def classifier_without_positions(seed):
    class Bag(Classifier):
        def embed(self, tokens):
            return self.table(tokens)

    model = Bag(seed)
    model.places = None
    return model, *classified(seed)


@broken("padding is visible")
def padding_is_visible(seed):
    return Classifier(seed), *padded(seed), {"padding": 0}


@broken("padding is visible")
def padding_counts_in_the_mean(seed):
    class Mean(Masking):
        def pooled(self, x, real):
            return x.mean(axis=1)

    return Mean(seed), *padded(seed), {"padding": 0}


# --- gradients ------------------------------------------------------------------------------------


@broken("no gradient")
def attention_is_detached(seed):
    class Cut(Block):
        def __call__(self, x):
            x = x + self.attention(self.norms[0](x)).detach()
            return x + self.narrow(self.activation(self.widen(self.norms[1](x))))

    return student(seed, block=Cut)


@broken("no gradient")
def a_layer_is_never_called(seed):
    class Forgotten(Block):
        def __call__(self, x):
            return x + self.attention(self.norms[0](x))

    return student(seed, block=Forgotten)


@broken("parameter not registered")
def layers_in_a_set(seed):
    class Hidden(Student):
        def logits(self, x):
            (head,) = self.hidden
            return head(x)

    model, *rest = student(seed, Hidden)
    model.hidden, model.head = {model.head}, None
    return model, *rest


@broken("tied weights not summed")
def tied_head_of_bare_data(seed):
    class Tied(Student):
        def logits(self, x):
            return x @ self.tokens.table.data.T

    model, *rest = student(seed, Tied)
    model.head = None
    return model, *rest


@broken("tied weights not summed")
def tied_embedding_of_bare_data(seed):
    class Tied(Student):
        def embed(self, tokens):
            rows = functional.embedding(self.tokens.table.data, tokens)
            return self.places(np.arange(tokens.shape[1])) + rows

        def logits(self, x):
            return x @ self.tokens.table.T

    model, *rest = student(seed, Tied)
    model.head = None
    return model, *rest


@broken("copied weights")
def tied_by_a_copy(seed):
    model, *rest = student(seed)
    model.head = mh.Linear(M, V, bias=False)
    model.head.weight.data = model.tokens.table.data.T.copy()
    return model, *rest


@broken("copied weights")
def every_layer_from_the_same_seed(seed):
    model, *rest = student(seed)
    for block in model.blocks:
        block.widen = mh.Linear(M, 4 * M, rng=seed)
    return model, *rest


@mh.operation
def swish_of_a_student(x):
    g = 1 / (1 + np.exp(-x))
    return x * g, lambda dy: (dy * g,)


@broken("wrong gradient")
def pullback_without_the_product_rule(seed):
    class Wrong(Block):
        def activation(self, x):
            return swish_of_a_student(x)

    return student(seed, block=Wrong)


@broken("wrong gradient")
def residual_of_bare_data(seed):
    class Bare(Block):
        def add(self, x, y):
            return x.data + y

    return student(seed, block=Bare)


@broken("stuck at zero")
def queries_and_keys_start_at_zero(seed):
    model, *rest = student(seed)
    for linear in model.blocks[1].attention.qkv[:2]:
        linear.weight.data = 0 * linear.weight.data
    return model, *rest


@broken("stuck at zero")
def all_weights_start_at_zero(seed):
    model, *rest = student(seed)
    for p in model.parameters():
        p.data = 0 * p.data
    return model, *rest


@broken("identical units")
def constant_weights(seed):
    model, *rest = student(seed)
    for name, p in model.named_parameters():
        if p.ndim == 2 and name.startswith("blocks"):
            p.data = 0 * p.data + np.float32(0.02)
    return model, *rest


# --- activity -------------------------------------------------------------------------------------


@broken("attention collapsed")
def huge_queries_and_keys(seed):
    class Huge(Attention):
        def scores(self, q, k):
            return 300.0 * (q @ k.mT)

    return student(seed, attention=Huge)


@broken("attention uniform")
def scores_divided_by_far_too_much(seed):
    class Flat(Attention):
        def scores(self, q, k):
            return q @ k.mT / 1e5

    return student(seed, attention=Flat)


@broken("dead units")
def biases_far_below_zero(seed):
    model, *rest = student(seed)
    model.blocks[1].widen.bias.data = model.blocks[1].widen.bias.data - 10
    return model, *rest


@broken("dead units")
def dead_gelu(seed):
    model = gpt(seed)
    model.blocks[0].mlp.widen.bias.data = model.blocks[0].mlp.widen.bias.data - 10
    return model, *batch(seed)


@broken("no residual connection")
def no_residuals(seed):
    class Plain(Block):
        def add(self, x, y):
            return y

    return student(seed, block=Plain)


@broken("vanishing gradient")
def sigmoids_through_depth(seed):
    class Squashing(Block):
        def add(self, x, y):
            return 1 / (1 + ops.exp(-(x + y)))

        def activation(self, x):
            return ops.tanh(x)

    model, *rest = student(seed, block=Squashing, layers=4)
    for block in model.blocks:
        block.norms = [lambda x: x, lambda x: x]
    return model, *rest


@broken("exploding gradient")
def residual_stream_that_grows(seed):
    class Growing(Block):
        def add(self, x, y):
            return 4.0 * x + y

    return student(seed, block=Growing, layers=6)


@broken("learning rate too high")
def learning_rate_of_one(seed):
    return gpt(seed), *batch(seed), {"lr": 1.0}


@broken("learning rate too low")
def learning_rate_of_almost_zero(seed):
    return gpt(seed), *batch(seed), {"lr": 1e-8}


@broken("cannot learn one batch")
def one_number_wide(seed):
    class Narrow(Student):
        def logits(self, x):
            return self.head(x[..., :1] + np.zeros((1, M), "float32"))

    return student(seed, Narrow)

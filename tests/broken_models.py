"""Models that do not learn, and what `mh.diagnose` must find first in each.

Each entry is a function of a seed that returns a model, inputs and targets, and perhaps settings.
"""

import math
from functools import partial

import numpy as np
from student_models import *

import minimha as mh
from minimha import functional, ops

BROKEN = {}


def broken(finding):
    """Add a broken model, and the finding that must come first."""
    return lambda make: BROKEN.setdefault(make.__name__, (finding, make))


def changed(name, finding, **changes):
    """Add a student's model with these methods and attributes in place of its own."""
    BROKEN[name] = finding, partial(student, **changes)


def started(finding, **changes):
    """Add a student's model whose weights the function has changed."""
    return lambda edit: BROKEN.setdefault(edit.__name__, (finding, edited(edit, **changes)))


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


changed("returns_probabilities", "softmax before cross entropy",
    model={"logits": lambda self, x: functional.softmax(self.head(x))})  # fmt: skip


@broken("loss above log(vocabulary)")
def tied_table_of_standard_deviation_one(seed):
    model = gpt(seed, tie=True)
    model.tokens.table.data = 50 * model.tokens.table.data
    return model, *batch(seed)


def softmax_of_an_empty_row(self, x):
    q, k, v = (self.split(f(x)) for f in self.qkv)
    visible = mh.masks.causal(offset=-1).array((T, T))
    scores = ops.where(visible, self.scores(q, k), -math.inf)
    e = ops.exp(scores - scores.max(axis=-1, keepdims=True))
    return self.out(self.merge(e / e.sum(axis=-1, keepdims=True) @ v))


changed("an_empty_row_of_minus_infinity", "not finite",
    attention={"__call__": softmax_of_an_empty_row})  # fmt: skip


@broken("not finite")
def weights_are_nan(seed):
    model = gpt(seed)
    model.blocks[1].mlp.widen.weight.data = math.nan * model.blocks[1].mlp.widen.weight.data
    return model, *batch(seed)


@broken("not deterministic")
def dropout_is_always_on(seed):
    rng = np.random.default_rng(seed)
    drop = lambda self, tokens: mh.Dropout(0.2)(Student.embed(self, tokens), rng)  # noqa: E731
    return student(seed, model={"embed": drop})


changed("goes_on_in_float64", "dtype drift",
    block={"activation": lambda _, x: functional.gelu(x.astype("float64")).astype("float32")})  # fmt: skip


@started("dtype drift", model={"logits": lambda self, x: self.head(x.astype("float64"))})
def one_layer_of_float64(model):
    model.head = mh.Linear(M, V, std=0.1, dtype="float64")


def masked_after(self, x):
    q, k, v = (self.split(f(x)) for f in self.qkv)
    weights = functional.softmax(self.scores(q, k)) * np.tril(np.ones((T, T), "float32"))
    return self.out(self.merge(weights @ v))


CAUSAL, PAST = mh.masks.causal(), mh.masks.causal(offset=-1)
LEAK = "leak from the future"
changed("no_mask", LEAK, attention={"mask": None})
changed("mask_off_by_one", LEAK, attention={"mask": mh.masks.causal(offset=1)})
changed("norm_over_positions", LEAK,
    block={"__call__": lambda self, x: Block.__call__(self, x - x.mean(axis=1, keepdims=True))})  # fmt: skip
changed("masked_after_softmax", LEAK, attention={"__call__": masked_after})
changed("mask_inverted", "mask the wrong way round", attention={"mask": ~PAST})
changed("each_query_sees_only_itself", "past without influence", attention={"mask": CAUSAL & ~PAST})
changed("softmax_over_queries", "softmax over the wrong axis", attention={"axis": -2})


def merged_by_reshape(self, heads):
    return heads.reshape(heads.shape[0], heads.shape[2], M)


changed("heads_split_without_a_transpose", "past without influence",
    attention={"split": lambda self, x: x.reshape(x.shape[0], H, x.shape[1], M // H),
               "merge": merged_by_reshape})  # fmt: skip
changed("heads_by_reshape", "sequences of a batch mix",
    attention={"split": lambda self, x: x.reshape(H, *x.shape[:2], M // H).transpose(0, 1),
               "merge": merged_by_reshape})  # fmt: skip
changed("no_positions", "no positions", model={
    "embed": lambda self, x: self.tokens(x) + 0.0 * self.places(np.arange(x.shape[1]))})  # fmt: skip


@broken("no positions")
def classifier_without_positions(seed):
    model = like(Classifier, {"embed": lambda self, tokens: self.table(tokens)})(seed)
    model.places = None
    return model, *classified(seed)


@broken("padding is visible")
def padding_is_visible(seed):
    return Classifier(seed), *padded(seed), {"padding": 0}


@broken("padding is visible")
def padding_counts_in_the_mean(seed):
    model = like(Masking, {"pooled": lambda self, x, real: x.mean(axis=1)})(seed)
    return model, *padded(seed), {"padding": 0}


def with_detached_attention(self, x):
    x = x + self.attention(self.norms[0](x)).detach()
    return x + self.narrow(self.activation(self.widen(self.norms[1](x))))


changed("attention_is_detached", "no gradient", block={"__call__": with_detached_attention})
changed("a_layer_is_never_called", "no gradient",
    block={"__call__": lambda self, x: x + self.attention(self.norms[0](x))})  # fmt: skip


@started("parameter not registered", model={"logits": lambda self, x: next(iter(self.hidden))(x)})
def layers_in_a_set(model):
    model.hidden, model.head = {model.head}, None


UNSUMMED = "tied weights not summed"


@started(UNSUMMED, model={"logits": lambda self, x: x @ self.tokens.table.data.T})
def tied_head_of_bare_data(model):
    model.head = None


def embedded_by_bare_data(self, tokens):
    rows = functional.embedding(self.tokens.table.data, tokens)
    return self.places(np.arange(tokens.shape[1])) + rows


TIED = {"embed": embedded_by_bare_data, "logits": lambda self, x: x @ self.tokens.table.T}


@started(UNSUMMED, model=TIED)
def tied_embedding_of_bare_data(model):
    model.head = None


@started("copied weights")
def tied_by_a_copy(model):
    model.head = mh.Linear(M, V, bias=False)
    model.head.weight.data = model.tokens.table.data.T.copy()


@started("copied weights")
def every_layer_from_the_same_seed(model):
    for block in model.blocks:
        block.widen = mh.Linear(M, 4 * M, rng=0)


@mh.operation
def swish_of_a_student(x):
    g = 1 / (1 + np.exp(-x))
    return x * g, lambda dy: (dy * g,)


changed("pullback_without_the_product_rule", "wrong gradient",
    block={"activation": lambda self, x: swish_of_a_student(x)})  # fmt: skip
changed("residual_of_bare_data", "wrong gradient", block={"add": lambda self, x, y: x.data + y})


@started("stuck at zero")
def queries_and_keys_start_at_zero(model):
    for linear in model.blocks[1].attention.qkv[:2]:
        linear.weight.data = 0 * linear.weight.data


@started("stuck at zero")
def all_weights_start_at_zero(model):
    for p in model.parameters():
        p.data = 0 * p.data


@started("identical units")
def constant_weights(model):
    for name, p in model.named_parameters():
        if p.ndim == 2 and name.startswith("blocks"):
            p.data = 0 * p.data + np.float32(0.02)


changed("huge_queries_and_keys", "attention collapsed",
    attention={"scores": lambda self, q, k: 300.0 * (q @ k.mT)})  # fmt: skip
changed("scores_divided_by_far_too_much", "attention uniform",
    attention={"scores": lambda self, q, k: q @ k.mT / 1e5})  # fmt: skip


@started("dead units")
def biases_far_below_zero(model):
    model.blocks[1].widen.bias.data = model.blocks[1].widen.bias.data - 10


@broken("dead units")
def dead_gelu(seed):
    model = gpt(seed)
    model.blocks[0].mlp.widen.bias.data = model.blocks[0].mlp.widen.bias.data - 10
    return model, *batch(seed)


@broken("dead units")
def dead_gates(seed):
    model = gpt(seed, activation="swiglu")
    model.blocks[0].mlp.gate.bias.data = model.blocks[0].mlp.gate.bias.data - 20
    return model, *batch(seed)


changed("no_residuals", "no residual connection", block={"add": lambda self, x, y: y})
SQUASHING = {
    "add": lambda self, x, y: 1 / (1 + ops.exp(-(x + y))),
    "activation": lambda self, x: ops.tanh(x),
}


@started("vanishing gradient", block=SQUASHING, layers=4)
def sigmoids_through_depth(model):
    for block in model.blocks:
        block.norms = [lambda x: x, lambda x: x]


changed("residual_stream_that_grows", "exploding gradient",
    block={"add": lambda self, x, y: 4.0 * x + y}, layers=6)  # fmt: skip


@broken("learning rate too high")
def learning_rate_of_one(seed):
    return gpt(seed), *batch(seed), {"lr": 1.0}


@broken("learning rate too low")
def learning_rate_of_almost_zero(seed):
    return gpt(seed), *batch(seed), {"lr": 1e-8}


changed("one_number_wide", "cannot learn one batch",
    model={"logits": lambda self, x: self.head(x[..., :1] + np.zeros((1, M), "float32"))})  # fmt: skip

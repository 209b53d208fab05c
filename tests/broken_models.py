"""Models that do not learn, and healthy ones: what `mh.diagnose` must find first, or not at all.

Each entry is a function of a seed that returns a model, inputs and targets, and perhaps settings.
"""

import math

import numpy as np

import minimha as mh
from minimha import functional, ops

V, B, T, M, H = 23, 6, 12, 16, 2
BROKEN, HEALTHY = {}, {}


def broken(finding):
    """Add a broken model, and the finding that must come first."""
    return lambda make: BROKEN.setdefault(make.__name__, (finding, make))


def healthy(make):
    return HEALTHY.setdefault(make.__name__, make)


def batch(seed):
    """Sequences of tokens, and the same shifted by one."""
    tokens = np.random.default_rng(seed).integers(0, V, (B, T + 1))
    return tokens[:, :-1], tokens[:, 1:]


def gpt(seed, **settings):
    sizes = {"context": T, "d_model": M, "num_heads": H, "num_layers": 2, "rng": seed}
    return mh.GPT(V, **(sizes | settings))


class Attention(mh.Module):
    """A student's own attention, of operations on Tensors."""

    mask, axis = mh.masks.causal(), -1

    def __init__(self, rng, std=0.3):
        self.qkv = [mh.Linear(M, M, bias=False, std=std, rng=rng) for _ in range(3)]
        self.out = mh.Linear(M, M, rng=rng)

    def __call__(self, x):
        q, k, v = (self.split(f(x)) for f in self.qkv)
        scores = self.scores(q, k)
        if self.mask is not None:
            scores = ops.where(self.mask.array(scores.shape, like=scores.data), scores, -1e9)
        return self.out(self.merge(functional.softmax(scores, axis=self.axis) @ v))

    def split(self, x):
        return x.reshape(*x.shape[:2], H, M // H).transpose(1, 2)

    def merge(self, heads):
        heads = heads.transpose(1, 2)
        return heads.reshape(*heads.shape[:2], M)

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(M // H)


class Block(mh.Module):
    def __init__(self, rng, attention=Attention):
        self.norms = [mh.LayerNorm(M), mh.LayerNorm(M)]
        self.attention = attention(rng)
        self.widen, self.narrow = mh.Linear(M, 4 * M, rng=rng), mh.Linear(4 * M, M, rng=rng)

    def __call__(self, x):
        x = self.add(x, self.attention(self.norms[0](x)))
        return self.add(x, self.narrow(self.activation(self.widen(self.norms[1](x)))))

    def add(self, x, y):
        return x + y

    def activation(self, x):
        return ops.maximum(x, 0.0)


class Student(mh.Module):
    """A student's own language model, which the broken ones change in one place."""

    def __init__(self, seed, attention=Attention, block=Block, layers=2):
        rng = np.random.default_rng(seed)
        self.tokens = mh.Embedding(V, M, std=0.3, rng=rng)
        self.places = mh.Embedding(T, M, std=0.3, rng=rng)
        self.blocks = [block(rng, attention) for _ in range(layers)]
        self.norm, self.head = mh.LayerNorm(M), mh.Linear(M, V, std=0.1, rng=rng)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))

    def embed(self, tokens):
        return self.tokens(tokens) + self.places(np.arange(tokens.shape[1]))

    def logits(self, x):
        return self.head(x)


def student(seed, cls=Student, *, attention=Attention, block=Block, **settings):
    return cls(seed, attention, block, **settings), *batch(seed)


class Classifier(mh.Module):
    """An encoder that reads rows of an image, and pools its outputs."""

    def __init__(self, seed, classes=4):
        rng = np.random.default_rng(seed)
        self.table, self.places = mh.Embedding(V, M, rng=rng), mh.Embedding(T, M, rng=rng)
        self.block, self.norm = mh.Block(M, H, rng=rng), mh.LayerNorm(M)
        self.head = mh.Linear(M, classes, std=0.1, rng=rng)

    def __call__(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(self.block(x)).mean(axis=1))

    def embed(self, tokens):
        return self.table(tokens) + self.places(np.arange(tokens.shape[1]))


class Masking(Classifier):
    """One that hides padding, token 0, from attention and from the mean."""

    def __call__(self, tokens):
        real = tokens != 0
        x = self.norm(self.block(self.embed(tokens), real[:, None, None, :]))
        return self.head(self.pooled(x, real))

    def pooled(self, x, real):
        weights = (real / real.sum(axis=1, keepdims=True)).astype("float32")
        return (x * weights[..., None]).sum(axis=1)


def classified(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, V, (8, T)), rng.integers(0, 4, 8)


def padded(seed):
    """Sequences of several lengths, filled up with token 0."""
    x, _ = classified(seed)
    x = np.where(x == 0, 1, x)
    lengths = np.random.default_rng(seed).integers(3, T, len(x))
    x = np.where(np.arange(T) < lengths[:, None], x, 0)
    return x, np.random.default_rng(seed + 1).integers(0, 4, len(x))


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


# --- healthy --------------------------------------------------------------------------------------


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

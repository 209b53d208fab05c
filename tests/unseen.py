"""Ten wrong backward passes whose author had not seen the known mistakes.

The causes were judged by hand: if one is named, its description is true of the bug.
"""

import math

import numpy as np
from catalogue import Bug, in_turn
from tapped import attention, base, pairs, shared, softmax, through_softmax, turned

from minimha import ops
from minimha_autograd import array_of


def normal(*shapes):
    """Random inputs of these shapes."""
    return lambda rng: (tuple(rng.standard_normal(shape) for shape in shapes), {})


def rotary(query, keys, *, tap):  # the keys come from a cache, already rotated
    rotated = tap("rotated", turned(query))
    return {**locals(), "out": rotated @ keys.mT}


ROTATED = base("rotary query", rotary, normal((5, 6), (4, 6)), "rotated")
NEIGHBOURS = np.r_[0:6:2, 1:6:2]


def one_array(query, kv, *, tap):  # serves as keys and as values
    repeated = tap("repeated", shared(kv, query))
    scores = tap("scores", query @ repeated.mT / math.sqrt(query.shape[-1]))
    weights = tap("weights", softmax(scores))
    return {**locals(), "out": weights @ repeated}


KEYS_AS_VALUES = base(
    "keys = values", one_array, normal((6, 2, 4), (3, 5, 4)), "repeated scores weights"
)


def token_shift(tokens, mix, weight, *, tap):  # and squared ReLU, as in RWKV
    shifted = tap("shifted", ops.concat([0 * tokens[:1], tokens[:-1]]))
    blended = tap("blended", mix * tokens + (1 - mix) * shifted)
    hidden = tap("hidden", blended @ weight)
    positive = ops.where(np.real(array_of(hidden)) > 0, hidden, 0.0)
    return {**locals(), "out": positive**2}


SHIFTED = base("token shift", token_shift, normal((5, 4), 4, (4, 6)), "shifted blended hidden")


def unbiased_norm(x, gain, bias, *, tap):  # as in the Annotated Transformer
    centred = tap("centred", x - x.mean(axis=-1, keepdims=True))
    variance = (centred**2).sum(axis=-1, keepdims=True) / (x.shape[-1] - 1)
    std = tap("std", variance**0.5)
    sigma = std + 1e-6
    normed = tap("normed", centred / sigma)
    return {**locals(), "out": normed * gain + bias}


UNBIASED = base("unbiased norm", unbiased_norm, normal((4, 7), 7, 7), "centred std normed")


def swiglu(x, to_gate, to_up, down, *, tap):
    gate, up = tap("gate", x @ to_gate), tap("up", x @ to_up)
    active = tap("active", gate / (1 + ops.exp(-gate)))
    hidden = tap("hidden", active * up)
    return {**locals(), "out": hidden @ down}


GATED_UP = base("SwiGLU", swiglu, normal((5, 3), (3, 7), (3, 7), (7, 4)), "gate up active hidden")


def last_queries(_):
    """The queries are the last four of five positions, and three weights are dropped."""
    keep = np.ones((4, 5))
    keep[[0, 2, 3], [2, 1, 0]] = 0
    return {"visible": np.tri(4, 5, 1, dtype=bool), "keep": keep, "p": 0.2}


LAST_QUERIES = base(
    "causal, dropped", attention, pairs(B=0, more=last_queries), "scores weights dropped"
)


def gated_linear_attention(query, key, value, gate, *, tap):
    decay = tap("decay", 1 / (1 + ops.exp(-gate)))
    writes = tap("writes", key[:, :, None] * value[:, None, :])
    saved = [0 * writes[0]]
    for t in range(len(writes)):
        saved.append(decay[t] * saved[-1] + writes[t])
    states = tap("states", ops.stack(saved[1:]))
    return {**locals(), "out": (query[:, :, None] * states).sum(axis=1)}


FORGETTING = base("gated linear attention", gated_linear_attention,
    normal((5, 3), (5, 3), (5, 4), 5), "decay writes states")  # fmt: skip


def parallel_block(x, mixer, w_1, w_2, *, tap):  # x + mix(x) + mlp(x)
    mixed = tap("mixed", mixer @ x)
    hidden = tap("hidden", x @ w_1)
    active = tap("active", ops.tanh(hidden))
    fed = tap("fed", active @ w_2)
    return {**locals(), "out": x + mixed + fed}


PARALLEL = base("parallel block", parallel_block, normal((5, 4), (5, 5), (4, 6), (6, 4)),
    "mixed hidden active fed")  # fmt: skip


def added_to_the_branch(n):
    n.dmixed = n.dmixed + n.dhidden @ n.w_1.T
    n.dmixed += n.mixer.T @ n.dmixed
    return n.dmixed


EXPERT = np.array([1, 0, 2, 1, 0, 2, 0])  # fixed by a hash of the token
ORDER = np.argsort(EXPERT, kind="stable")
INVERSE = np.argsort(ORDER)


def experts(tokens, weights, *, tap):
    ordered = tap("ordered", tokens[ORDER])
    processed = tap("processed", (ordered[:, None, :] @ weights[EXPERT[ORDER]])[:, 0])
    restored = tap("restored", processed[INVERSE])
    return {**locals(), "out": ops.tanh(restored)}


ROUTED = base("experts", experts, normal((7, 4), (3, 4, 5)), "ordered processed restored")


READ, TARGET, STEPS = np.array([2, 5, 2, 0, 6]), np.array([5, 2, 0, 6, 3]), np.arange(5)


def next_word(embedding, positions, *, tap):
    looked_up = tap("looked_up", embedding[READ] * math.sqrt(embedding.shape[1]))
    hidden = tap("hidden", ops.tanh(looked_up + positions))
    logits = tap("logits", hidden @ embedding.mT)
    probabilities = softmax(logits)
    return {**locals(), "out": -ops.log(probabilities[STEPS, TARGET]).mean()}


def at_the_targets(n):
    dembedding = n.dlogits.T @ n.hidden
    np.add.at(dembedding, TARGET, n.dlooked_up * math.sqrt(n.embedding.shape[1]))
    return dembedding


READING = base("next word", next_word, normal((7, 4), (5, 4)), "looked_up hidden logits")


def bug(name, node, function, cause="unexplained", **fault):
    return Bug(name, (node,), cause, function, fault)


# fmt: off
UNSEEN = [
    # The backward undoes the rotation on neighbouring columns (2i, 2i + 1), the other convention.
    bug("rope_pairs_mixed_up", "query", ROTATED,
        query=lambda n: turned(n.drotated[:, NEIGHBOURS], -1)[:, np.argsort(NEIGHBOURS)]),
    # It sums the copies as if the heads were in the order 0 1 2 0 1 2 instead of 0 0 1 1 2 2.
    bug("grouped_heads_summed_as_tiles", "kv", KEYS_AS_VALUES, "groups-interleaved",
        kv=lambda n: in_turn(n.drepeated, n.kv)),
    # np.roll back: the gradient of the zeros in front wraps around to the last token.
    bug("shift_wraps_round", "tokens", SHIFTED,
        tokens=lambda n: n.mix * n.dblended + np.roll(n.dshifted, -1, axis=0)),
    # The usual formula, which divides by n: a factor of (n − 1)/n in the step to the deviation.
    bug("unbiased_std_biased_backward", "centred", UNBIASED, "factor",
        centred=lambda n: n.dnormed / n.sigma + n.dstd * n.centred / (n.std * n.x.shape[-1])),
    # The forward was silu(gate) · up, but the tensor that was saved for the backward is gate.
    bug("swiglu_saved_gate_before_silu", "up", GATED_UP, "operand-wrong",
        up=lambda n: n.dhidden * n.gate),
    # The weights after dropout (some zero, the rest scaled up) instead of the output of softmax.
    bug("softmax_backward_with_dropped_weights", "scores", LAST_QUERIES,
        scores=lambda n: through_softmax(n.dropped, n.dweights)),
    # The state after the step: an off-by-one error in the list of saved states.
    bug("forget_gate_meets_later_state", "decay", FORGETTING,
        decay=lambda n: (n.dwrites * np.stack(n.saved[1:])).sum(axis=(1, 2))),
    # The gradients of branch and residual are one array, so += to the residual changes both.
    bug("branch_shares_memory_with_residual", "mixed", PARALLEL, x=added_to_the_branch),
    # The gradients are sorted a second time instead of being restored to their order.
    bug("experts_sorted_twice", "tokens", ROUTED, tokens=lambda n: n.dordered[ORDER]),
    # The gradient of the lookup goes to the rows of the target words, not of the input words.
    bug("tied_embedding_rows_of_targets", "embedding", READING, embedding=at_the_targets),
]

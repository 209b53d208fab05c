"""Ten wrong backward passes. make(rng) gives the wrong one, make(rng, wrong=False) the same function done right."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass
class Unseen:
    name: str
    what: str
    node: str
    make: Callable


UNSEEN = []


def unseen(node, what):
    def register(make):
        UNSEEN.append(Unseen(make.__name__, what, node, make))
        return make

    return register


def softmax(x, mask=1.0):
    e = np.exp(x - x.real.max(-1, keepdims=True)) * mask
    return e / e.sum(-1, keepdims=True)


def softmax_back(p, dp):
    return p * (dp - (dp * p).sum(-1, keepdims=True))


@unseen(
    "query",
    "The forward rotates feature i together with feature i + d/2, but the backward undoes the rotation on "
    "neighbouring pairs (2i, 2i + 1), the other convention for rotary positions.",
)
def rope_pairs_mixed_up(rng, wrong=True):
    def f(query, keys, *, tap=lambda name, x: x):  # the keys come from a cache, already rotated
        half = query.shape[-1] // 2
        angle = np.arange(len(query))[:, None] * 0.3 ** np.arange(half)
        c, s = np.cos(angle), np.sin(angle)
        a, b = query[:, :half], query[:, half:]
        rotated = tap("rotated", np.concatenate([a * c - b * s, a * s + b * c], -1))

        def pullback(dout):
            drotated = dout @ keys
            dquery = np.empty_like(drotated)
            first = slice(0, None, 2) if wrong else slice(0, half)
            second = slice(1, None, 2) if wrong else slice(half, None)
            da, db = drotated[:, first], drotated[:, second]
            dquery[:, first], dquery[:, second] = da * c + db * s, db * c - da * s
            return dquery, dout.T @ rotated, {"rotated": drotated}

        return rotated @ keys.T, pullback

    return f, [rng.standard_normal((5, 6)), rng.standard_normal((4, 6))]


@unseen(
    "kv",
    "Each shared head serves neighbouring query heads (0 0 1 1 2 2), but the backward adds up the copies "
    "as if the heads had been laid out 0 1 2 0 1 2.",
)
def grouped_heads_summed_as_tiles(rng, wrong=True):
    def f(query, kv, *, tap=lambda name, x: x):  # one array serves as keys and as values
        copies = len(query) // len(kv)
        repeated = tap("repeated", np.repeat(kv, copies, axis=0))
        scores = tap("scores", query @ np.swapaxes(repeated, -1, -2) / np.sqrt(query.shape[-1]))
        weights = tap("weights", softmax(scores))

        def pullback(dout):
            dweights = dout @ np.swapaxes(repeated, -1, -2)
            dscores = softmax_back(weights, dweights)
            draw = dscores / np.sqrt(query.shape[-1])
            drepeated = np.swapaxes(weights, -1, -2) @ dout + np.swapaxes(draw, -1, -2) @ query
            rest = kv.shape[1:]
            tiles, groups = (
                drepeated.reshape(copies, -1, *rest).sum(0),
                drepeated.reshape(-1, copies, *rest).sum(1),
            )
            dkv = tiles if wrong else groups
            return (
                draw @ repeated,
                dkv,
                {"repeated": drepeated, "scores": dscores, "weights": dweights},
            )

        return weights @ repeated, pullback

    return f, [rng.standard_normal((6, 2, 4)), rng.standard_normal((3, 5, 4))]


@unseen(
    "tokens",
    "The forward shifts the tokens one step later and puts zeros in front; the backward shifts with "
    "np.roll, so what belongs to those zeros wraps round and lands on the last token.",
)
def shift_wraps_round(rng, wrong=True):
    def f(
        tokens, mix, weight, *, tap=lambda name, x: x
    ):  # token shift and squared ReLU, as in RWKV
        shifted = tap("shifted", np.concatenate([np.zeros_like(tokens[:1]), tokens[:-1]]))
        blended = tap("blended", mix * tokens + (1 - mix) * shifted)
        hidden = tap("hidden", blended @ weight)
        positive = np.where(hidden.real > 0, hidden, 0)

        def pullback(dout):
            dhidden = 2 * positive * dout
            dblended = dhidden @ weight.T
            dshifted = (1 - mix) * dblended
            back = np.roll(dshifted, -1, axis=0)
            if not wrong:
                back[-1] = 0
            dmix = (dblended * (tokens - shifted)).sum(0)
            return (
                mix * dblended + back,
                dmix,
                blended.T @ dhidden,
                {"shifted": dshifted, "blended": dblended, "hidden": dhidden},
            )

        return positive**2, pullback

    return f, [rng.standard_normal((5, 4)), rng.uniform(0.2, 0.8, 4), rng.standard_normal((4, 6))]


@unseen(
    "centred",
    "The standard deviation is the unbiased one (sum of squares over n - 1), but the backward of the "
    "norm uses the usual formula, which divides by n.",
)
def unbiased_std_biased_backward(rng, wrong=True):
    def f(x, gain, bias, *, tap=lambda name, x: x):  # LayerNorm as in the Annotated Transformer
        n, eps = x.shape[-1], 1e-6
        centred = tap("centred", x - x.mean(-1, keepdims=True))
        std = tap("std", np.sqrt((centred**2).sum(-1, keepdims=True) / (n - 1)))
        normed = tap("normed", centred / (std + eps))

        def pullback(dout):
            dnormed = dout * gain
            dstd = -(dnormed * centred).sum(-1, keepdims=True) / (std + eps) ** 2
            dcentred = dnormed / (std + eps) + dstd * centred / (std * (n if wrong else n - 1))
            dx = dcentred - dcentred.mean(-1, keepdims=True)
            return (
                dx,
                (dout * normed).sum(0),
                dout.sum(0),
                {"centred": dcentred, "std": dstd, "normed": dnormed},
            )

        return normed * gain + bias, pullback

    return f, [rng.standard_normal((4, 7)), rng.uniform(0.5, 1.5, 7), rng.standard_normal(7)]


@unseen(
    "up",
    "The other branch of SwiGLU gets its gradient times the gate before SiLU, not after: the product in the "
    "forward was silu(gate) * up, but the tensor that was saved for the backward is gate.",
)
def swiglu_saved_gate_before_silu(rng, wrong=True):
    def f(x, to_gate, to_up, down, *, tap=lambda name, x: x):
        gate = tap("gate", x @ to_gate)
        up = tap("up", x @ to_up)
        s = 1 / (1 + np.exp(-gate))
        active = tap("active", gate * s)
        hidden = tap("hidden", active * up)

        def pullback(dout):
            dhidden = dout @ down.T
            dactive = dhidden * up
            dup = dhidden * (gate if wrong else active)
            dgate = dactive * (s + active * (1 - s))
            return (
                dgate @ to_gate.T + dup @ to_up.T,
                x.T @ dgate,
                x.T @ dup,
                hidden.T @ dout,
                {"gate": dgate, "up": dup, "active": dactive, "hidden": dhidden},
            )

        return hidden @ down, pullback

    return f, [rng.standard_normal(shape) for shape in [(5, 3), (3, 7), (3, 7), (7, 4)]]


@unseen(
    "scores",
    "The backward of the softmax uses the attention weights as they are after dropout (some zero, the "
    "rest scaled up) in place of the softmax's own output.",
)
def softmax_backward_with_dropped_weights(rng, wrong=True):
    drop = np.array([[0, 0, 1, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
    keep = (1 - drop) / 0.8

    def f(
        query, key, value, *, tap=lambda name, x: x
    ):  # the queries are the last four of five positions
        causal = np.tri(len(query), len(key), len(key) - len(query))
        scores = tap("scores", query @ key.T / np.sqrt(query.shape[-1]))
        weights = tap("weights", softmax(scores, causal))
        dropped = tap("dropped", weights * keep)

        def pullback(dout):
            ddropped = dout @ value.T
            dweights = ddropped * keep
            dscores = softmax_back(dropped if wrong else weights, dweights)
            draw = dscores / np.sqrt(query.shape[-1])
            return (
                draw @ key,
                draw.T @ query,
                dropped.T @ dout,
                {"scores": dscores, "weights": dweights, "dropped": ddropped},
            )

        return dropped @ value, pullback

    return f, [rng.standard_normal(shape) for shape in [(4, 6), (5, 6), (5, 3)]]


@unseen(
    "decay",
    "The forget gate multiplies the state from before the step, but its gradient is taken with the state "
    "from after the step (off by one in the list of saved states).",
)
def forget_gate_meets_later_state(rng, wrong=True):
    def f(query, key, value, gate, *, tap=lambda name, x: x):  # gated linear attention
        decay = tap("decay", 1 / (1 + np.exp(-gate)))
        writes = tap("writes", key[:, :, None] * value[:, None, :])
        saved = [np.zeros_like(writes[0])]
        for a, write in zip(decay, writes, strict=True):
            saved.append(a * saved[-1] + write)
        states = tap("states", np.stack(saved[1:]))

        def pullback(dout):
            dstates = query[:, :, None] * dout[:, None, :]
            ddecay, dwrites, carry = np.empty_like(decay), np.empty_like(dstates), 0
            for t in reversed(range(len(decay))):
                dwrites[t] = dstates[t] + carry
                ddecay[t] = (dwrites[t] * saved[t + 1 if wrong else t]).sum()
                carry = decay[t] * dwrites[t]
            dquery = (states * dout[:, None, :]).sum(2)
            dkey, dvalue = (dwrites * value[:, None, :]).sum(2), (dwrites * key[:, :, None]).sum(1)
            return (
                dquery,
                dkey,
                dvalue,
                ddecay * decay * (1 - decay),
                {"decay": ddecay, "writes": dwrites, "states": dstates},
            )

        return (query[:, :, None] * states).sum(1), pullback

    return f, [rng.standard_normal(shape) for shape in [(5, 3), (5, 3), (5, 4), (5,)]]


@unseen(
    "mixed",
    "The gradient of the mixing branch is not a copy but the same array as the gradient of the residual, "
    "so the += that adds the MLP's share to the residual changes it too.",
)
def branch_shares_memory_with_residual(rng, wrong=True):
    def f(x, mixer, w1, w2, *, tap=lambda name, x: x):  # parallel block: x + mix(x) + mlp(x)
        mixed = tap("mixed", mixer @ x)
        hidden = tap("hidden", x @ w1)
        active = tap("active", np.tanh(hidden))
        fed = tap("fed", active @ w2)

        def pullback(dout):
            dx, dfed = dout.copy(), dout.copy()
            dmixed = dx if wrong else dout.copy()
            dactive = dfed @ w2.T
            dhidden = dactive * (1 - active**2)
            dx += dhidden @ w1.T
            dmixer = dmixed @ x.T
            dx += mixer.T @ dmixed
            return (
                dx,
                dmixer,
                x.T @ dhidden,
                active.T @ dfed,
                {"mixed": dmixed, "hidden": dhidden, "active": dactive, "fed": dfed},
            )

        return x + mixed + fed, pullback

    return f, [rng.standard_normal(shape) for shape in [(5, 4), (5, 5), (4, 6), (6, 4)]]


@unseen(
    "tokens",
    "The tokens are sorted by expert on the way in; the backward sorts the gradients a second time with "
    "the same permutation, when it should have put them back with the inverse one.",
)
def experts_sorted_twice(rng, wrong=True):
    expert = np.array([1, 0, 2, 1, 0, 2, 0])  # fixed by a hash of the token
    order = np.argsort(expert, kind="stable")
    inverse = np.argsort(order)

    def f(tokens, weights, *, tap=lambda name, x: x):
        ordered = tap("ordered", tokens[order])
        chosen = weights[expert[order]]
        processed = tap("processed", (ordered[:, None, :] @ chosen)[:, 0])
        restored = tap("restored", processed[inverse])

        def pullback(dout):
            drestored = dout * (1 - np.tanh(restored) ** 2)
            dprocessed = drestored[order]
            dordered = (dprocessed[:, None, :] @ np.swapaxes(chosen, -1, -2))[:, 0]
            dweights = np.zeros_like(weights)
            np.add.at(dweights, expert[order], ordered[:, :, None] * dprocessed[:, None, :])
            return (
                dordered[order if wrong else inverse],
                dweights,
                {"ordered": dordered, "processed": dprocessed, "restored": drestored},
            )

        return np.tanh(restored), pullback

    return f, [rng.standard_normal((7, 4)), rng.standard_normal((3, 4, 5))]


@unseen(
    "embedding",
    "The table is used to look tokens up and again for the logits; the look-up's gradient is added to "
    "the rows of the words to be predicted, not to the rows of the words that were read.",
)
def tied_embedding_rows_of_targets(rng, wrong=True):
    sequence = np.array([2, 5, 2, 0, 6, 3])
    read, target = sequence[:-1], sequence[1:]

    def f(embedding, positions, *, tap=lambda name, x: x):
        rows, scale = np.arange(len(read)), np.sqrt(embedding.shape[1])
        looked_up = tap("looked_up", embedding[read] * scale)
        hidden = tap("hidden", np.tanh(looked_up + positions))
        logits = tap("logits", hidden @ embedding.T)
        probs = softmax(logits)

        def pullback(dout):
            dlogits = probs.copy()
            dlogits[rows, target] -= 1
            dlogits *= dout / len(read)
            dhidden = dlogits @ embedding
            dlooked_up = dhidden * (1 - hidden**2)
            dembedding = dlogits.T @ hidden
            np.add.at(dembedding, target if wrong else read, dlooked_up * scale)
            return (
                dembedding,
                dlooked_up,
                {"looked_up": dlooked_up, "hidden": dhidden, "logits": dlogits},
            )

        return -np.log(probs[rows, target]).mean(), pullback

    return f, [rng.standard_normal((7, 4)) / 2, rng.standard_normal((5, 4)) / 2]

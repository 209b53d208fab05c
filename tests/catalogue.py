"""Deliberately wrong backward passes, each with the place of its mistake and its cause.

A bug replaces gradients of a function of tests/tapped.py. n.weights is a value, n.dweights a gradient.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from tapped import *


@dataclass(frozen=True, eq=False)
class Bug:
    """A wrong backward.

    node   the names of where it stands: their gradients are wrong, and those of all that is
           computed from them are right
    cause  a slug, as in a diagnosis
    match  for a function that changes between calls, a regular expression for the message; its
           gradient at the first call may be right
    """

    name: str
    node: tuple
    cause: str
    base: Base = field(repr=False)
    fault: dict = field(repr=False)
    match: str = ""

    @property
    def hygiene(self):
        """Whether the mistake is a function that changes between calls, not a wrong formula."""
        return bool(self.match)

    def make(self, rng):
        """The function and its inputs."""
        return self.base.make(rng, **self.fault)


CATALOGUE = []


def bug(name, node, cause, base, match="", **fault):
    """Register a bug with its formulas for gradients."""
    CATALOGUE.append(Bug(name, tuple(node.split()), cause, base, fault, match))


# A bug is a line or two.
# fmt: off

bug("dq by np.dot", "query", "all-pairs", PLAIN, query=lambda n: np.dot(n.draw, n.k))
bug("dk by np.inner", "key", "all-pairs", PLAIN, key=lambda n: np.inner(n.draw.mT, n.q.mT))
bug("dq without the scale", "query", "scale", PLAIN, q=lambda n: n.dscaled @ n.k)
bug("dk without the scale", "key", "scale", PLAIN, k=lambda n: n.dscaled.mT @ n.q)
bug("dq and dk without the scale", "query key", "scale", FEW, raw=lambda n: n.dscaled)
bug("draw without the scale", "raw", "scale", PLAIN, raw=lambda n: n.dscaled)
bug("draw with 1/D", "raw", "scale-twice", PLAIN, raw=lambda n: n.dscaled / n.q.shape[-1])
bug("dq scaled twice", "query", "scale-twice", PLAIN,
    q=lambda n: n.draw @ n.k / math.sqrt(n.q.shape[-1]))
bug("dq with the wrong sign", "query", "sign", PLAIN, q=lambda n: -n.draw @ n.k)
bug("dv with an extra factor", "value", "factor", PLAIN, v=lambda n: 0.9 * n.dropped.mT @ n.dheads)
bug("no gradient to the key", "key", "zero", PLAIN, k=lambda n: np.zeros_like(n.k))
bug("None for the value", "value", "zero", PLAIN, value=lambda n: None)
bug("dk reshaped, not transposed", "key", "reshape-for-swap", PLAIN,
    k=lambda n: (n.q.mT @ n.draw).reshape(n.k.shape))
bug("dq shifted by one head", "query", "unexplained", PLAIN, query=lambda n: np.roll(n.dq, 1, axis=1))

bug("P instead of Pᵀ in dv", "value", "operand-transposed", SQUARE, v=lambda n: n.weights @ n.dheads)
bug("dS instead of dSᵀ in dk", "key", "operand-transposed", SQUARE, k=lambda n: n.draw @ n.q)
bug("dSᵀ instead of dS in dq", "query", "operand-transposed", SQUARE, q=lambda n: n.draw.mT @ n.k)
bug("Q instead of K in dq", "query", "operand-wrong", SQUARE, q=lambda n: n.draw @ n.q)
bug("Q and K swapped in both", "query key", "operand-wrong", SQUARE,
    q=lambda n: n.draw @ n.q, k=lambda n: n.draw.mT @ n.k)
bug("dweights instead of dscores in dq", "query", "operand-wrong", PLAIN,
    q=lambda n: n.dweights @ n.k / math.sqrt(n.q.shape[-1]))
bug("scores instead of weights in dv", "value", "operand-wrong", PLAIN, v=lambda n: n.scores.mT @ n.dheads)
bug("P before dropout in dv", "value", "operand-wrong", DROPPED, v=lambda n: n.weights.mT @ n.dheads)
bug("dq and dk swapped", "query key", "another-input", SQUARE,
    query=lambda n: n.dk, key=lambda n: n.dq)
bug("dk and dv swapped", "key value", "another-input", EVEN,
    key=lambda n: n.dv, value=lambda n: n.dk)


def in_turn(dx, x):
    """The gradient if query head h had read key head h mod G."""
    return dx.reshape(*x.shape[:-3], -1, *x.shape[-3:]).sum(axis=-4)


bug("mean over a group in dk", "key", "groups-mean", GROUPED,
    k=lambda n: members(n.draw.mT @ n.q, n.k).mean(axis=-3))
bug("mean over a group in dv", "value", "groups-mean", GROUPED,
    v=lambda n: members(n.dropped.mT @ n.dheads, n.v).mean(axis=-3))
bug("only the first head of a group in dv", "value", "groups-one-member", GROUPED,
    v=lambda n: members(n.dropped.mT @ n.dheads, n.v)[..., 0, :, :])
bug("only the last head of a group in dk", "key", "groups-one-member", GROUPED,
    k=lambda n: members(n.draw.mT @ n.q, n.k)[..., -1, :, :])
bug("interleaved groups in dk", "key", "groups-interleaved", GROUPED,
    k=lambda n: in_turn(n.draw.mT @ n.q, n.k))
bug("interleaved groups in dk and dv", "key value", "groups-interleaved", GROUPED,
    k=lambda n: in_turn(n.draw.mT @ n.q, n.k), v=lambda n: in_turn(n.dropped.mT @ n.dheads, n.v))

bug("dropout not rescaled", "weights", "dropout-unscaled", DROPPED,
    weights=lambda n: n.ddropped * n.keep)
bug("dropout left out", "weights", "dropout-ignored", DROPPED, weights=lambda n: n.ddropped)
bug("dropout rescaled, not applied", "weights", "dropout-ignored", DROPPED,
    weights=lambda n: n.ddropped / (1 - n.p))
bug("dropout with another mask", "weights", "dropout-redrawn", DROPPED,
    weights=lambda n: n.ddropped * np.roll(n.keep, 1, axis=-1) / (1 - n.p))
bug("dropout rescaled by p", "weights", "factor", DROPPED,
    weights=lambda n: n.ddropped * n.keep / n.p)


def at_scores(formula):
    return lambda n: formula(n.weights, n.dweights)


bug("softmax without the row term", "scores", "softmax-row-term", PLAIN,
    scores=at_scores(lambda p, dp: p * dp))
bug("softmax with a row term without P", "scores", "softmax-row-term", PLAIN,
    scores=at_scores(lambda p, dp: p * (dp - dp.sum(axis=-1, keepdims=True))))
bug("softmax without P", "scores", "softmax-without-p", PLAIN,
    scores=at_scores(lambda p, dp: dp - (dp * p).sum(axis=-1, keepdims=True)))
bug("softmax with the mean", "scores", "softmax-mean", PLAIN,
    scores=at_scores(lambda p, dp: p * (dp - (dp * p).mean(axis=-1, keepdims=True))))
bug("softmax with the plain mean", "scores", "softmax-mean", PLAIN,
    scores=at_scores(lambda p, dp: p * (dp - dp.mean(axis=-1, keepdims=True))))
bug("softmax over the queries", "scores", "softmax-axis", PLAIN,
    scores=at_scores(lambda p, dp: p * (dp - (dp * p).sum(axis=-2, keepdims=True))))
bug("softmax, only the diagonal", "scores", "softmax-diagonal", PLAIN,
    scores=at_scores(lambda p, dp: p * (1 - p) * dp))
bug("softmax left out", "scores", "slope-missing", PLAIN, scores=lambda n: n.dweights)

bug("weights recomputed without the mask", "scores", "mask-ignored", MASKED,
    scores=lambda n: through_softmax(softmax(n.biased), n.dweights))
bug("masked scores keep their gradient", "scaled", "mask-ignored", FILLED, biased=lambda n: n.dscores)
bug("mask inverted", "scaled", "zero", MASKED, biased=lambda n: np.where(n.visible, 0, n.dscores))
bug("causal off by one", "scaled", "unexplained", MASKED,
    biased=lambda n: np.tri(5, k=-1) * n.dscores)

bug("RoPE not inverted in dq", "query", "rope-direction", TURNED, query=lambda n: turned(n.dq))
bug("RoPE not inverted in dk", "key", "rope-direction", TURNED, key=lambda n: turned(n.dk))
bug("RoPE left out in dk", "key", "rope-ignored", TURNED, key=lambda n: n.dk)
bug("RoPE left out in both", "query key", "rope-ignored", TURNED,
    query=lambda n: n.dq, key=lambda n: n.dk)
bug("RoPE from position 1", "query", "unexplained", TURNED,
    query=lambda n: turned(n.dq, -1, offset=1))

bug("softcap without its slope", "scaled", "slope-missing", CAPPED, scaled=lambda n: n.dbiased)
bug("softcap, slope 1 − y² from its value y", "scaled", "unexplained", CAPPED,
    scaled=lambda n: n.dbiased * (1 - n.scores**2))

bug("bias not summed over the batch", "bias", "unsummed", BIASED, bias=lambda n: n.dbiased)
bug("bias averaged", "bias", "averaged", BIASED, bias=lambda n: n.dbiased.mean(axis=0))
bug("bias summed over the heads", "bias", "unexplained", ALIKE,
    bias=lambda n: n.dbiased.sum(axis=1))
bug("sink with the wrong sign", "sink", "sign", BIASED, sink=lambda n: -n.dsink)
bug("no gradient to the sink", "sink", "zero", BIASED, sink=lambda n: np.zeros_like(n.sink))
bug("sink averaged", "sink", "averaged", BIASED, sink=lambda n: n.dsink / n.query[:, 0, :, 0].size)

bug("dq merged by reshape", "q_merged", "reshape-for-swap", HEADS,
    q_merged=lambda n: n.dq.reshape(n.q_merged.shape))
bug("dv merged by reshape", "v_merged", "reshape-for-swap", HEADS,
    v_merged=lambda n: n.dv.reshape(n.v_merged.shape))
bug("dmerged split by reshape", "heads", "reshape-for-swap", HEADS,
    heads=lambda n: n.dmerged.reshape(n.heads.shape))
bug("dw_o transposed", "w_o", "transposed", WIDE, w_o=lambda n: product(n.merged, n.dout).T)
bug("W instead of Wᵀ in dmerged", "merged", "operand-transposed", WIDE, merged=lambda n: n.dout @ n.w_o)
bug("dw_q reshaped, not transposed", "w_q", "reshape-for-swap", HEADS,
    w_q=lambda n: product(n.dq_merged, n.x).reshape(n.w_q.shape))
bug("dq instead of dk in dw_k", "w_k", "operand-wrong", HEADS, w_k=lambda n: product(n.x, n.dq_merged))
bug("dw_v averaged over the batch", "w_v", "averaged", HEADS,
    w_v=lambda n: (n.x.mT @ n.dv_merged).mean(axis=0))
bug("dw_o from the last sequence only", "w_o", "path-missing", HEADS,
    w_o=lambda n: n.merged[-1].T @ n.dout[-1])
bug("dx without the keys", "x", "path-missing", HEADS,
    x=lambda n: n.dq_merged @ n.w_q.T + n.dv_merged @ n.w_v.T)
bug("dx from the values only", "x", "path-missing", HEADS, x=lambda n: n.dv_merged @ n.w_v.T)
bug("dx with the queries twice", "x", "path-twice", HEADS, x=lambda n: n.dx + n.dq_merged @ n.w_q.T)
bug("b_o not summed over the batch", "b_o", "unsummed", HEADS, b_o=lambda n: n.dout.sum(axis=1))
bug("b_v not summed at all", "b_v", "unsummed", HEADS, b_v=lambda n: n.dv_merged)
bug("b_o averaged", "b_o", "averaged", HEADS, b_o=lambda n: n.dout.mean(axis=(0, 1)))
bug("db_q and db_k swapped", "b_q b_k", "another-input", HEADS,
    b_q=lambda n: n.dk_merged.sum(axis=(0, 1)), b_k=lambda n: n.dq_merged.sum(axis=(0, 1)))

bug("no scale, with groups, mask, dropout, RoPE", "q k", "scale", WHOLE, raw=lambda n: n.dscaled)
bug("RoPE not inverted, with groups, mask, dropout", "k_merged", "rope-direction", WHOLE,
    k_merged=lambda n: merge(turned(n.dk)))
bug("mean over a group, with mask, dropout, RoPE", "v", "groups-mean", WHOLE,
    v=lambda n: members(n.dropped.mT @ n.dheads, n.v).mean(axis=-3))

bug("K before Q in dqkv", "qkv", "another-input", FUSED, qkv=lambda n: joined(n.dk, n.dq, n.dv))
bug("heads before roles in dqkv", "qkv", "reshape-for-swap", FUSED,
    qkv=lambda n: np.stack((n.dq, n.dk, n.dv)).transpose(1, 3, 2, 0, 4).reshape(n.qkv.shape))
bug("no values in dqkv", "qkv", "path-missing", FUSED,
    qkv=lambda n: joined(n.dq, n.dk, np.zeros_like(n.dv)))

bug("layer norm without its mean", "x", "norm-mean-term", LAYER_NORM,
    x=lambda n: through_norm(n, mean=0))
bug("layer norm without its variance", "x", "norm-variance-term", LAYER_NORM,
    x=lambda n: through_norm(n, variance=0))
bug("layer norm without either", "x", "norm-both-terms", LAYER_NORM,
    x=lambda n: through_norm(n, mean=0, variance=0))
bug("layer norm without 1/σ", "x", "norm-sigma", LAYER_NORM, x=lambda n: through_norm(n, sigma=1))
bug("layer norm without γ", "unit", "norm-gain", LAYER_NORM, unit=lambda n: n.dnormed)
bug("layer norm without γ, untapped", "x", "norm-gain", UNTAPPED, unit=lambda n: n.dnormed)
bug("dγ without the normalised x", "gamma", "operand-wrong", LAYER_NORM,
    gamma=lambda n: n.dnormed.sum(axis=(0, 1)))
bug("dγ not summed", "gamma", "unsummed", RMS_NORM, gamma=lambda n: n.dnormed * n.unit)
bug("dβ averaged", "beta", "averaged", LAYER_NORM, beta=lambda n: n.dnormed.mean(axis=(0, 1)))
bug("RMS norm without its second term", "x", "norm-variance-term", RMS_NORM,
    x=lambda n: through_norm(n, variance=0))
bug("RMS norm without 1/σ", "x", "norm-sigma", RMS_NORM, x=lambda n: through_norm(n, sigma=1))
bug("RMS norm with layer norm's mean", "x", "norm-mean-term", RMS_NORM,
    x=lambda n: through_norm(n) - n.dunit.mean(axis=-1, keepdims=True) / n.sigma)

bug("residual missing", "x", "path-missing", BLOCK, x=through_norm)
bug("residual doubled", "x", "path-twice", BLOCK, x=lambda n: 2 * n.dout + through_norm(n))
bug("only the residual", "x", "path-missing", BLOCK, x=lambda n: n.dout)
bug("residual of post-norm", "normed", "path-twice", BLOCK,
    normed=lambda n: n.dout + n.dinner @ n.w_1.T, x=through_norm)
bug("norm left out", "x", "slope-missing", BLOCK, x=lambda n: n.dout + n.dnormed)
bug("no γ in a block", "x", "norm-gain", BLOCK, unit=lambda n: n.dnormed)
bug("no mean in a block", "x", "norm-mean-term", BLOCK,
    x=lambda n: n.dout + through_norm(n, mean=0))
bug("gelu without its slope", "inner", "slope-missing", BLOCK, inner=lambda n: n.dhidden)
bug("gelu, only Φ in its slope", "inner", "path-missing", BLOCK,
    inner=lambda n: n.dhidden * (1 + n.t) / 2)
bug("slope of relu instead of gelu", "inner", "unexplained", BLOCK,
    inner=lambda n: n.dhidden * (n.inner > 0))
bug("inner instead of hidden in dw_2", "w_2", "operand-wrong", BLOCK,
    w_2=lambda n: product(n.inner, n.dout))


def overwritten(n):
    table = np.zeros_like(n.table)
    table[n.tokens] = n.dembedded
    return table


bug("repeated token overwritten", "table", "repeats-overwritten", LANGUAGE, table=overwritten)
bug("target not subtracted", "logits", "target-missing", LANGUAGE,
    logits=lambda n: through_losses(n.probabilities, 0, n))
bug("target shifted by one class", "logits", "unexplained", LANGUAGE,
    logits=lambda n: through_losses(n.probabilities, np.roll(n.onehot, 1, axis=-1), n))
bug("sum of losses instead of the mean", "logits", "factor", LANGUAGE,
    logits=lambda n: n.dlogits * n.counts.sum())
bug("temperature left out", "logits", "factor", LANGUAGE,
    logits=lambda n: n.dlogits * n.temperature)
bug("gradient of the loss left out", "logits", "not-linear", LANGUAGE,
    logits=lambda n: n.dlogits / n.dout)
bug("ignored target counted", "logits", "mask-ignored", IGNORED,
    logits=lambda n: n.dout * (n.probabilities - n.onehot) / n.counts.sum() / n.temperature)
bug("tied weights without the output", "table", "path-missing", TIED, table=scattered)
bug("tied weights without the embedding", "table", "path-missing", TIED,
    table=lambda n: n.dtable - scattered(n))
bug("tied weights, repeated token overwritten", "table", "repeats-overwritten", TIED,
    table=lambda n: n.dtable - scattered(n) + overwritten(n))


def added_up(n):
    """The gradient is accumulated in an array created by the forward."""
    total = n.memory.setdefault("value", np.zeros_like(n.v))
    total += n.dropped.mT @ n.dheads
    return total


def in_place(n):
    """The right value, but it overwrites the saved weights."""
    dscores = through_softmax(n.weights, n.dweights)
    n.weights *= n.dweights
    return dscores


def doubling(n):
    n.dout *= 2
    return n.dout / 2


TWICE = "(?i)twice|two (runs|calls)|second|again|differ"

bug("dropout redrawn in each backward", "weights", "dropout-redrawn", DROPPED, TWICE,
    weights=lambda n: n.ddropped * (NOISE.random(n.keep.shape) > n.p) / (1 - n.p))
bug("dropout redrawn in each forward", "", "unexplained", RESTLESS,
    "two calls with the same inputs gave different values")
bug("dv added to the last one", "value", "unexplained", PLAIN, TWICE, v=added_up)
bug("saved weights changed in place", "scores", "unexplained", PLAIN, TWICE, scores=in_place)
bug("the cotangent changed in place", "heads", "unexplained", PLAIN,
    "changed its cotangent in place", heads=doubling)

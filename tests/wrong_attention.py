"""Attention built from small operations, and the mistakes that its invariants find."""

import itertools
import math

import numpy as np
from attention_paths import BOTH, Path, Result, given, leaf, pulled
from invariants import rows

from minimha_autograd import ops

NOISE = itertools.count(1)


def composed(case, fault="", ask=False):  # noqa: PLR0912, PLR0915  a branch a fault
    """Attention built from small operations, with a fault for the invariants to find."""
    leaves = given(case, np.asarray, leaf)
    q, k, v, bias, sink, scale, softcap = leaves.values()
    (t, s), visible, p = case.shape[-2:], case.visible, case.dropout
    if case.key.ndim > 2:
        group = np.arange(case.shape[-3]), case.shape[-3] // case.key.shape[-3]
        reads = np.floor_divide(*group)
        if fault == "query head h reads key head h mod G":
            reads = group[0] % case.key.shape[-3]
        if fault == "heads swapped":
            reads = np.roll(reads, group[1])
        k, v = k[..., reads, :, :], v[..., reads, :, :]
    if fault == "causal off by one" and s:
        visible = visible | np.concatenate((visible[..., :1], visible[..., :-1]), axis=-1)
    if fault == "mask inverted":
        visible = ~visible
    if fault == "padding hides queries":
        visible = visible & (np.arange(t)[:, None] < visible.sum(axis=-1, keepdims=True))
    scores = q @ k.mT
    if fault != "no scale":
        scores = scores * (1 / math.sqrt(case.query.shape[-1]) if scale is None else scale)

    def capped(x):
        if softcap is None or fault == "no softcap":
            return x
        t = ops.tanh(x / softcap)
        return t if fault == "softcap without its factor" else softcap * t

    scores = scores if fault == "softcap after the bias" else capped(scores)
    if bias is not None:
        clipped = fault == "bias of minus infinity clipped"
        scores = scores + ops.where(bias.data > -math.inf, bias, -2.0 if clipped else 0.0)
        visible = rows(case.allowed, case.shape) if clipped else visible
    scores = capped(scores) if fault == "softcap after the bias" else scores
    if fault == "scores depend on positions":
        scores = scores - 0.1 * abs(np.arange(t)[:, None] - np.arange(s))
    axis = -2 if fault == "softmax over queries" else -1
    shown = np.ones_like(visible) if fault == "masked after the softmax" else visible
    peak = np.where(shown, scores.data, -math.inf).max(axis=axis, keepdims=True, initial=-math.inf)
    if sink is not None:
        peak = np.maximum(peak, sink.data[..., None, None])
    peak = np.where((peak == -math.inf) | (fault == "maximum not subtracted"), 0, peak)
    e = ops.where(shown, ops.exp(ops.where(shown, scores - peak, 0.0)), 0.0)
    total = e.sum(axis=axis, keepdims=True)
    if sink is not None and fault != "no sink":
        total = total + ops.exp(sink[..., None, None] - peak)
    if sink is not None and fault == "1 added to the sum when there is a sink":
        total = total + np.exp(-peak)
    if fault == "sum treated as constant":
        total = total.detach()
    if fault != "empty rows divided by zero":
        total = total + (total.data == 0).astype(float)
    weights = e if fault == "not divided by the sum" else e / total
    if fault == "masked after the softmax":
        weights = ops.where(visible, weights, 0.0)
    if fault == "empty rows attend to all keys":
        weights = weights + ~visible.any(axis=-1, keepdims=True) / max(s, 1)
    if fault == "mean of the visible values":
        weights = 0 * weights + visible / np.maximum(visible.sum(axis=-1, keepdims=True), 1)
    if fault == "weights rounded to single precision":
        weights = ops.astype(ops.astype(weights, dtype=np.float32), dtype=np.float64)
    dropped = weights
    if case.keep is not None:
        factor = 0.0 if p == 1 else 1.0 if fault == "dropout not rescaled" else 1 / (1 - p)
        dropped = ops.where(case.keep, weights * factor, 0.0)
    out = dropped @ v
    changes = {
        "output depends on what is requested": ask,
        "results vary between calls": fault and next(NOISE),
    }
    out = out * (1 + 2**-52 * changes.get(fault, 0))
    gradients = pulled(case, np.asarray, leaves, out, weights)
    for name, x in gradients.items():
        gradients[name] = np.zeros_like(leaves[name].data) if x is None else x
    return Result(out.data, weights.data, None, gradients)


class Composed(Path):
    """The same as a path, with its other form as a sibling."""

    @property
    def siblings(self):
        asked = lambda case, _: composed(case, self.form, ask=True)  # noqa: E731
        return (Path(self.family, "asked", asked),)


def broken(fault):
    def run(case, _):
        with np.errstate(all="ignore"):
            return composed(case, fault)

    return Composed("composed", fault, run, BOTH)


FAULTS = {
    "no scale": "the_result_equals_the_formula",
    "weights rounded to single precision": "the_result_equals_the_formula",
    "mean of the visible values": "the_result_equals_the_formula",
    "softmax over queries": "weights_sum_to_one",
    "masked after the softmax": "weights_sum_to_one",
    "not divided by the sum": "a_query_of_zeros_gets_the_mean_of_the_visible_values",
    "mask inverted": "weights_are_positive_exactly_where_visible",
    "softcap after the bias": "shifting_the_scores_of_a_query_changes_nothing",
    "sum treated as constant": "rows_of_dscores_sum_to_zero",
    "scores depend on positions": "permuting_keys_with_their_values_changes_nothing",
    "dropout not rescaled": "the_mean_over_dropout_masks_equals_no_dropout",
    "causal off by one": "nothing_leaks_from_the_future",
    "padding hides queries": "padding_is_invisible_and_hides_no_query",
    "heads swapped": "heads_are_independent",
    "query head h reads key head h mod G": "query_head_h_reads_key_head_h_div_group_size",
    "empty rows attend to all keys": "an_empty_row_gives_zeros_and_zero_gradients",
    "empty rows divided by zero": "an_empty_row_gives_zeros_and_zero_gradients",
    "bias of minus infinity clipped": "a_bias_of_minus_infinity_equals_a_mask",
    "no sink": "the_sink_takes_its_share_of_the_weights",
    "1 added to the sum when there is a sink": "a_sink_of_minus_infinity_equals_no_sink",
    "sum treated as constant, sink": "gradients_of_scores_and_sink_sum_to_zero",
    "softcap without its factor": "a_large_softcap_has_no_effect",
    "no softcap": "the_softcap_bounds_the_scores",
    "results vary between calls": "repeated_calls_are_bitwise_identical",
    "output depends on what is requested": "requesting_more_does_not_change_the_output",
    "maximum not subtracted": "large_scores_stay_finite_and_accurate",
}

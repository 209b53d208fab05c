"""Are the targets and the logits suitable for the cross entropy?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from minimha_autograd import backend, detect_anomaly, no_grad, widened

from .probe import Probe
from .report import Finding

_ABOVE = 1.0  # nats above log(V): logits of variance 1 cost 0.5
_MOST = 0.95  # of the pairs; some tokens repeat by chance
_SHIFTED = {
    0: (
        "targets not shifted",
        "the targets are the inputs themselves: a model that copies its input has loss 0 and "
        "predicts nothing. Shift by one: inputs = tokens[:, :-1], targets = tokens[:, 1:]",
    ),
    -1: (
        "targets shifted the wrong way",
        "each target is the previous token, which a causal model has already seen: "
        "it learns to look back, not to predict. Swap the slices: inputs = tokens[:, :-1], "
        "targets = tokens[:, 1:]",
    ),
    2: (
        "targets shifted too far",
        "each target is the second token from here, so generation skips every other token. Is the "
        "shift applied twice, once by the data and once in the loss?",
    ),
}


def targets(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the targets are tokens of the same sequences as the inputs, but shifted by
    the wrong number of positions: targets[t] should be inputs[t + 1]. Also note in
    `probe.predicts_next`, for other checks, whether the targets are the next tokens."""
    x, y, t = probe.inputs, probe.targets, probe.inputs.shape[1]
    if x.shape != y.shape:
        probe.figures["targets"] = "one class for each sequence"
        return

    def agreement(k: int) -> float:
        """Return the fraction of positions at which targets[t] = inputs[t + k]."""
        ahead, here = slice(max(k, 0), t + min(k, 0)), slice(max(-k, 0), t - max(k, 0))
        real = probe.real[:, ahead] & probe.real[:, here]
        same = (x[:, ahead] == y[:, here])[real]
        return float(np.mean(same)) if same.size >= 4 else 0.0

    probe.predicts_next = agreement(1) >= _MOST
    if probe.predicts_next:
        probe.figures["targets"] = "the next tokens"
        return
    probe.figures["targets"] = "not tokens of the same sequence, so causality is not checked"
    for k, (name, text) in _SHIFTED.items():
        if (share := agreement(k)) >= _MOST:
            what = f"inputs[t{f' {k:+d}' if k else ''}]".replace("+", "+ ").replace("-", "− ")
            figure = f"targets[t] = {what} at {share:.0%} of the positions"
            yield Finding(name, "the targets", figure, text, "09 training")


def finite(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if a parameter or a logit is NaN or infinite."""
    for name, x in probe.weights().items():
        if not np.isfinite(x).all():
            text = (
                "a parameter holds NaN or infinity: training has diverged. Start again from an "
                "earlier checkpoint, with a lower learning rate or with clipped gradients"
            )
            yield Finding("not finite", name, _count(x), text, "09 training")
            return
    with np.errstate(over="ignore", invalid="ignore"):  # reported as a finding
        logits = widened(probe.logits())
    if np.isfinite(logits).all():
        probe.figures["dtype"] = str(probe.dtype)
        return
    where = "the logits"
    try:
        with no_grad(), detect_anomaly(), np.errstate(over="ignore", invalid="ignore"):
            probe.call(probe.inputs)
    except FloatingPointError as error:
        where = str(error).splitlines()[0]
    text = (
        "the usual causes are a row of scores that is −∞ everywhere, a logarithm or division "
        "of 0, exp of a large number and, in float16, any number beyond 65,504. "
        "mh.detect_anomaly() shows the line"
    )
    yield Finding("not finite", where, _count(logits), text, "06 masks")


def _count(x: np.ndarray) -> str:
    return f"{np.sum(~np.isfinite(x))} of {x.size} entries are not finite"


def deterministic(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if two calls with the same inputs and without an rng give different logits,
    as when dropout is active."""
    first, second = probe.logits(), probe.logits()
    change = float(abs(first - second).max())
    rounding = float(np.sqrt(np.finfo(first.dtype).eps) * abs(first).max())  # more than enough
    if change > rounding:
        figure = f"two calls with the same inputs differ by up to {change:.2g}"
        text = (
            "dropout or other noise is active although the call has no rng, so evaluation is noisy "
            "and no other check can be trusted. Let the caller pass the generator: "
            "model(inputs, rng=rng) in training, model(inputs) elsewhere"
        )
        yield Finding("not deterministic", "the output", figure, text, "09 training")


def dtypes(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the parameters have different dtypes, or if a floating-point intermediate
    has a dtype different from theirs."""
    own = {name: backend.to_numpy(p.data).dtype for name, p in probe.parameters.items()}
    main = probe.dtype
    for name, dtype in own.items():
        if dtype != main:
            figure = f"{dtype}, while {next(iter(own))} is {main}"
            text = "the parameters have different dtypes: pass the same dtype= to every layer"
            yield Finding("dtype drift", name, figure, text, "01 arrays")
            return
    for step in probe.trace(probe.inputs[:1]):
        dtype = step.value.dtype
        if dtype.kind == "f" and dtype != main:
            figure = f"{step.operation} returns {dtype}, while the parameters are {main}"
            text = (
                f"the computation goes on in {dtype} from here. A float64 array or an "
                "astype among float32 numbers doubles memory and time; float16 loses digits"
            )
            yield Finding("dtype drift", probe.place(step.node), figure, text, "01 arrays")
            return


def probabilities(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the model returns probabilities instead of logits: cross_entropy applies
    the softmax itself.

    Log-probabilities are fine: softmax(log p) = p.
    """
    logits = probe.logits()
    sums = logits.sum(axis=-1, dtype=np.float64)
    if logits.min() < 0 or abs(sums - 1).max() > 1e-3 or logits.shape[-1] < 2:
        return
    c = logits.shape[-1]
    least = math.log(math.e + c - 1) - 1  # all probability on the target
    text = (
        "the model returns probabilities, but cross_entropy expects logits: its own softmax "
        f"flattens them, so the loss cannot fall below {least:.3f} and the gradients are "
        "small. Leave out the softmax at the end of the model; log-probabilities would be fine"
    )
    figure = f"every row sums to 1, all entries from {logits.min():.2g} to {logits.max():.2g}"
    yield Finding("softmax before cross entropy", "the output", figure, text, "09 training")


def loss(probe: Probe) -> Iterator[Finding]:
    """Yield a finding if the loss is far above log(V), the loss of a uniform guess. At
    initialisation it should be near log(V); training makes it lower."""
    with no_grad():
        value = probe.loss().item()
    logits = probe.logits()
    uniform, spread = math.log(logits.shape[-1]), float(logits.std(axis=-1).mean())
    figure = f"{value:.3f} nats; log({logits.shape[-1]}) = {uniform:.3f}, a uniform guess"
    probe.figures["loss"] = figure
    if value > uniform + _ABOVE:
        text = (
            f"the model is worse than a uniform guess: its logits have standard deviation "
            f"{spread:.2g}. At initialisation: the last linear map or a tied embedding starts "
            "too large (GPT-2's weights start with standard deviation 0.02), or the norm before it "
            "is missing. After training: the learning rate was too high"
        )
        yield Finding("loss above log(vocabulary)", "the output", figure, text, "09 training")

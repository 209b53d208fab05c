"""Cross entropy of a softmax against the true classes."""

from __future__ import annotations

import math

from minimha_autograd import Pullback, backend, operation
from minimha_autograd.backend import Array, is_complex, namespace

from .implementations import accelerated


@operation
@accelerated
def cross_entropy(logits: Array, targets: Array) -> tuple[Array, Pullback]:
    """y = mean of −log softmax(logits)[target], in nats.   dlogits = dy · (softmax − one-hot) / N.

    logits (…, C), targets (…) integers from 0 to C − 1; N is the number of targets.
    Raises TypeError for targets that are not integers; ValueError if the shapes do not match, if
    there are no targets, or if a target is out of range. On a device, y is NaN instead if a target
    is out of range, since the check would make the host wait for the device.
    """
    xp = namespace(logits)
    backend.require(backend.is_integral, targets, "targets")
    targets = xp.astype(targets, xp.int64)  # a narrow type may not hold the number of classes
    dtype = logits.dtype
    count = math.prod(targets.shape)  # N
    fits = logits.ndim and logits.shape[:-1] == targets.shape
    if not fits or not count:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}, logits (…, C) {tuple(logits.shape)}: "
            "there must be one target for each row of logits"
        )
    classes = logits.shape[-1]  # C
    out_of_range = (targets < 0) | (targets >= classes)  # (…)
    outside = xp.any(out_of_range)  # ()
    if backend.on_host(outside) and bool(outside):
        raise ValueError(f"targets must be from 0 to {classes - 1}")

    # True at the target of each row.
    numbers = xp.arange(classes, dtype=xp.int64, device=logits.device)  # (C,)
    hit = numbers == targets[..., None]  # (…, C)

    # The factor exp(−peak) cancels in softmax, and without it exp could overflow.
    real = logits
    if is_complex(logits):  # in a gradient check by the complex step
        real = xp.real(logits)
    peak = xp.max(real, axis=-1, keepdims=True)  # (…, 1)
    shifted = logits - peak  # (…, C)
    exps = xp.exp(shifted)  # (…, C)
    total = xp.sum(exps, axis=-1, keepdims=True)  # (…, 1)

    # −log(exp(shifted) / total) is log(total) − shifted: softmax itself could round to 0.
    sum_of_logs = xp.sum(xp.log(total))  # ()
    at_targets = xp.sum(xp.where(hit, shifted, xp.zeros_like(shifted)))  # ()
    y = (sum_of_logs - at_targets) / count  # ()
    if not backend.on_host(outside):
        y = xp.where(outside, xp.full_like(y, math.nan), y)

    def pullback(dy: Array) -> tuple[Array, None]:
        softmax = exps / total  # (…, C)
        one_hot = xp.astype(hit, dtype)  # (…, C)
        dlogits = dy * (softmax - one_hot) / count  # (…, C)
        return dlogits, None

    return y, pullback

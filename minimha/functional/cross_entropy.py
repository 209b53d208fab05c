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
    Raises ValueError for shapes that do not match, no targets or one out of range, TypeError for
    targets that are not integers. On a device y is NaN for a target out of range, since the check
    would make the host wait for the device.
    """
    xp = namespace(logits)
    backend.require(backend.is_integral, targets, "targets")
    targets = xp.astype(targets, xp.int64)  # a narrow type may not hold the number of classes
    count, dtype = math.prod(targets.shape), logits.dtype
    if not logits.ndim or logits.shape[:-1] != targets.shape or not count:
        raise ValueError(
            f"targets has shape {tuple(targets.shape)}, logits (…, C) {tuple(logits.shape)}: "
            "there must be one target for each row of logits"
        )
    classes = logits.shape[-1]
    outside = xp.any((targets < 0) | (targets >= classes))
    if backend.on_host(outside) and bool(outside):
        raise ValueError(f"targets must be from 0 to {classes - 1}")
    hit = xp.arange(classes, dtype=xp.int64, device=logits.device) == targets[..., None]
    peak = xp.max(xp.real(logits) if is_complex(logits) else logits, axis=-1, keepdims=True)
    shifted = logits - peak
    exps = xp.exp(shifted)
    total = xp.sum(exps, axis=-1, keepdims=True)
    y = (xp.sum(xp.log(total)) - xp.sum(xp.where(hit, shifted, xp.zeros_like(shifted)))) / count
    if not backend.on_host(outside):
        y = xp.where(outside, xp.full_like(y, math.nan), y)

    def pullback(dy: Array) -> tuple[Array, None]:
        softmax, one_hot = exps / total, xp.astype(hit, dtype)
        return dy * (softmax - one_hot) / count, None

    return y, pullback

"""What wrong gradients of other layers look like: rotary positions, norms, losses, embeddings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from .arrays import summed_to
from .attention import sharpness
from .step import Mistake, Step


def rope(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if the step rotates pairs of columns by an
    angle, and the gradient is not rotated back by this angle: it is rotated forward or not at
    all."""
    if step.consumer is None or step.yours.shape != step.value.shape:
        return
    x, dx = (_split_like(a, step.output) for a in (step.value, step.yours))
    if x is None or dx is None or x.shape[-1] % 2:
        return
    for as_pairs in (_halves, _neighbours):
        rotation = as_pairs(step.output) / as_pairs(x)
        first = rotation.reshape(-1, *rotation.shape[-2:])[0]  # the position alone sets the angle
        if not np.allclose(abs(rotation), 1, rtol=1e-6) or not np.allclose(rotation, first):
            continue
        if np.allclose(rotation.imag, 0):
            continue
        dy, pairs = as_pairs(step.dy), as_pairs(dx)
        close = step.tolerance * abs(pairs).max(initial=0.0)
        if abs(pairs - dy * rotation).max() < close:
            text = "it is rotated by θ, as in the forward; a gradient has to be rotated back, by −θ"
            yield "rope-direction", step.yours, text
        if abs(pairs - dy).max() < close:
            text = "it is not rotated back by −θ: pairs have the right length but the wrong "
            yield "rope-ignored", step.yours, f"{text}direction"


def _halves(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return x[..., :half] + 1j * x[..., half:]


def _neighbours(x: np.ndarray) -> np.ndarray:
    return x[..., ::2] + 1j * x[..., 1::2]


def _split_like(x: np.ndarray, output: np.ndarray) -> np.ndarray | None:
    """Return x in the shape of the output: unchanged, or (…, T, H·D) split into heads. Returns None
    if x has neither shape."""
    if x.shape == output.shape and x.ndim >= 2:
        return x
    if output.ndim >= 3:
        heads, positions, width = output.shape[-3:]
        if x.shape == (*output.shape[:-3], positions, heads * width):
            return np.swapaxes(x.reshape(*x.shape[:-1], heads, width), -3, -2)
    return None


def norm(step: Step) -> Iterator[Mistake]:
    """Yield the gradients that known mistakes give in a layer norm or an RMS norm. The gradient of
    a layer norm is dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ with g = dy · γ; that of an RMS norm
    lacks mean(g)."""
    if not step.keeps_shape or step.value.ndim < 2:
        return
    x, centred = step.value, step.value - _mean(step.value)
    for (gain, shift), is_layer in itertools.product(_affine(step), (True, False)):
        unit = (step.output - shift) / gain
        inverse = _mean(unit / (centred if is_layer else x))  # 1/σ
        if not np.allclose(unit, (centred if is_layer else x) * inverse, rtol=1e-6, atol=1e-9):
            continue
        if np.allclose(inverse, inverse.flat[0], rtol=1e-6):
            continue  # a norm has a different factor in each row

        def dx(
            g: np.ndarray, mean: bool = is_layer, variance: bool = True, unit: np.ndarray = unit
        ) -> np.ndarray:
            return np.asarray(g - mean * _mean(g) - variance * unit * _mean(g * unit))

        g, formula = step.dy * gain, _LAYER_NORM if is_layer else _RMS_NORM
        if not step.is_right(dx(g) * inverse):
            continue
        mean = f"mean(g) {'is missing' if is_layer else 'does not belong here'}"
        for name, y, text in (
            ("norm-variance-term", dx(g, variance=False), "x̂ · mean(g · x̂) is missing"),
            ("norm-mean-term", dx(g, mean=not is_layer), mean),
            ("norm-both-terms", g, "both mean(g) and x̂ · mean(g · x̂) are missing"),
            ("norm-gain", dx(step.dy), "the gain γ is missing in g"),
            ("norm-sigma", dx(g) / inverse, "1/σ is missing"),
        ):
            yield name, y * inverse, f"{text}.\n{formula}"
        return


_LAYER_NORM = "With g = dy · γ, dx = (g − mean(g) − x̂ · mean(g · x̂)) / σ"
_RMS_NORM = "With g = dy · γ, dx = (g − x̂ · mean(g · x̂)) / σ"


def _mean(a: np.ndarray) -> np.ndarray:
    return np.asarray(a.mean(axis=-1, keepdims=True))


def _affine(step: Step) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each pair of a gain and a shift that the step may have applied to the last axis. The
    gain is a vector of ones or one of the step's values, if this is a vector as long as the last
    axis. The shift is a vector of zeros or also such a value."""
    width = step.value.shape[-1:]
    vectors = [x for x in step.values.values() if x.shape == width]
    gains, shifts = [np.ones(width), *vectors], [np.zeros(width), *vectors]
    yield from itertools.product(gains, shifts)


def gain(step: Step) -> Iterator[Mistake]:
    """Yield dy as the gradient of a normalised node x̂, if the step computes y = γ x̂ + β. The
    right gradient is γ dy: the gain γ is missing."""
    if not step.keeps_shape or not step.value.ndim:
        return
    is_normalized = np.allclose((step.value * step.value).mean(axis=-1), 1, rtol=1e-2)
    for factor, shift in _affine(step) if is_normalized else ():
        if np.allclose(step.output, factor * step.value + shift):
            text = "the gain γ is missing. For y = γ · x̂ + β the gradient is dx̂ = γ · dy"
            yield "norm-gain", step.dy, text


def target(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if it is that of the cross entropy, except
    that the 1 at each target is not subtracted. The right gradient is
    dlogits = (softmax(logits) − one-hot) / N."""
    if step.value.ndim < 1 or step.yours.shape != step.value.shape or not step.off.any():
        return
    rows, sums = step.off.any(axis=-1), abs(step.right.sum(axis=-1))
    close = step.tolerance * abs(step.right).max(initial=0.0)
    if (step.off.sum(axis=-1) > 1).any() or sums.max() > close:
        return
    off = np.where(step.off, step.yours - step.right, 0).sum(axis=-1)[rows]
    p = step.yours[rows] / off[:, None]
    if abs(p.sum(axis=-1) - 1).max() <= step.tolerance and sharpness(step.value[rows], p, -1):
        text = "the 1 at the target is not subtracted. Correct: dlogits = softmax(logits) − one-hot"
        yield "target-missing", step.yours, text


def embedding(step: Step) -> Iterator[Mistake]:
    """Yield the gradient that the pullback computed, if the step reads rows of a table several
    times, and the gradient of each of these rows is that of one use only instead of the sum."""
    if step.consumer is None or step.value.ndim != 2 or step.dy.shape[-1:] != step.value.shape[-1:]:
        return
    off, width = step.off.any(axis=-1), step.value.shape[1]
    if not off.any() or width < 2 or summed_to(step.dy, step.value.shape) is not None:
        return
    made, dy = step.output.reshape(-1, width), step.dy.reshape(-1, width)
    for x, dx in zip(step.value[off], step.yours[off], strict=True):
        factor = (made @ x / (x @ x))[:, None]  # rows may be scaled as they are read
        is_read = (abs(made - factor * x) <= 1e-9 * abs(made).max(initial=0.0)).all(axis=-1)
        parts = (factor * dy)[is_read & (factor[:, 0] != 0)]
        size = abs(dx).max()
        if len(parts) < 2 or not (abs(parts - dx) <= step.tolerance * size).all(axis=-1).any():
            return
    rows = ", ".join(map(str, np.flatnonzero(off)[:5]))
    text = f"each of the rows {rows} is read several times, but gets the gradient of one use only: "
    yield "repeats-overwritten", step.yours, f"{text}gradients add up (np.add.at, not =)"

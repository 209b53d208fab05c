"""Linear attention and the gated delta rule, as operations."""

from __future__ import annotations

from typing import Any

from minimha_autograd import Pullback, backend, in_float32, operation
from minimha_autograd.backend import Array, namespace

from ...functional.checks import integer
from ...masks.kinds import broadcasts
from .forms import chunked, recurrent


@operation
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array | None = None,
    state: Array | None = None,
    *,
    form: str = "chunked",
    chunk: int = 64,
) -> tuple[tuple[Array, Array], Pullback]:
    """TODO"""
    values, pull = _computed(query, key, value, None, log_decay, state, form=form, chunk=chunk)

    def pullback(dout: Array | None, dstate: Array | None) -> tuple[Array | None, ...]:
        gradients = pull(dout, dstate)
        return *gradients[:3], *gradients[4:]

    return values, pullback


@operation
def gated_delta_rule(
    query: Array,
    key: Array,
    value: Array,
    beta: Array,
    log_decay: Array | None = None,
    state: Array | None = None,
    *,
    form: str = "chunked",
    chunk: int = 64,
) -> tuple[tuple[Array, Array], Pullback]:
    """TODO"""
    return _computed(query, key, value, beta, log_decay, state, form=form, chunk=chunk)


def _computed(
    query: Array,
    key: Array,
    value: Array,
    beta: Array | None,
    log_decay: Array | None,
    state: Array | None,
    *,
    form: str,
    chunk: int,
) -> tuple[tuple[Array, Array], Pullback]:
    """Check the arguments, and compute the form."""
    arrays = query, key, value, beta, log_decay, state
    if backend.is_half(query):
        return in_float32(_computed, *arrays, form=form, chunk=chunk)
    sizes = {"recurrent": 1, "parallel": max(1, query.shape[-2]), "chunked": chunk}
    if form not in sizes:
        raise ValueError(f"form = {form!r}: it must be one of {', '.join(map(repr, sizes))}")
    integer(chunk, "chunk", least=1)
    lead, width = query.shape[:-1], (*query.shape[:-2], query.shape[-1], value.shape[-1])
    if key.shape != query.shape or value.shape[:-1] != lead:
        raise ValueError(
            "query and key (…, H, T, D) need the same shape, and value (…, H, T, Dv) the same T"
        )
    xp = namespace(query)
    if state is None:
        state = xp.zeros(width, dtype=query.dtype, device=query.device)
    shapes = {"beta": (beta, lead), "log_decay": (log_decay, lead), "state": (state, width)}
    full = {}
    for name, (x, shape) in shapes.items():
        if x is not None and not broadcasts(x.shape, shape):
            raise ValueError(f"{name} must broadcast to {shape}")
        full[name] = x if x is None else xp.broadcast_to(x, shape)
    arrays = query, key, value, *full.values()
    if form == "recurrent":
        values, pull = recurrent(*arrays)
    else:
        values, pull = chunked(*arrays, size=sizes[form])

    def pullback(dout: Array | None, dstate: Array | None) -> tuple[Array | None, ...]:
        dout = xp.zeros_like(values[0]) if dout is None else dout
        return pull(dout, xp.zeros_like(values[1]) if dstate is None else dstate)

    return values, pullback

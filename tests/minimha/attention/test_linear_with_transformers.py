"""The gated delta rule is that of Qwen3-Next in Hugging Face's transformers, which computes in
float32. Skipped if transformers is not installed."""

import numpy as np
import pytest
from with_transformers import MARKS

import minimha as mh

pytestmark = MARKS

B, H, T, D, DV = 2, 3, 37, 5, 7


def drawn(rng, strong=0.0):
    """query, key, value, beta, log_decay and state; `strong` is added to one log_decay."""
    query, key = rng.standard_normal((2, B, H, T, D))
    decay = -rng.random((B, H, T))
    decay[..., 10] += strong
    arrays = query, key, rng.standard_normal((B, H, T, DV)), rng.random((B, H, T)), decay
    state = rng.standard_normal((B, H, D, DV))
    return [x.astype("float32") for x in (*arrays, state)]


def ours(arrays, dout, dlast):
    """Output, state and gradients, with the scale and the norms that theirs includes."""
    query, key, *others = leaves = [mh.Tensor(x, requires_grad=True) for x in arrays]

    def unit(x):
        return x / ((x * x).sum(axis=-1, keepdims=True) + 1e-6) ** 0.5

    out, last = mh.gated_delta_rule(unit(query) / D**0.5, unit(key), *others, chunk=16)
    ((out * dout).sum() + (last * dlast).sum()).backward()
    return [out.data, last.data, *(x.grad for x in leaves)]


def theirs(function, arrays, dout, dlast, **settings):
    import torch

    query, key, value, beta, decay, state = leaves = [
        torch.tensor(x, requires_grad=True) for x in arrays
    ]
    rows = (x.transpose(1, 2) for x in (query, key, value, decay, beta))
    out, last = function(
        *rows, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True,
        **settings,
    )  # fmt: skip
    out = out.transpose(1, 2)
    ((out * torch.tensor(dout)).sum() + (last * torch.tensor(dlast)).sum()).backward()
    return [x.detach().numpy() for x in (out, last, *(x.grad for x in leaves))]


def functions():
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    return [
        (qwen.torch_recurrent_gated_delta_rule, {}),
        (qwen.torch_chunk_gated_delta_rule, {"chunk_size": 16}),
    ]


def test_it_is_the_gated_delta_rule_of_qwen3_next(rng):
    arrays = drawn(rng)
    cotangents = (rng.standard_normal(s).astype("float32") for s in ((B, H, T, DV), (B, H, D, DV)))
    dout, dlast = cotangents
    found = ours(arrays, dout, dlast)
    for function, settings in functions():
        expected = theirs(function, arrays, dout, dlast, **settings)
        for one, two in zip(found, expected, strict=True):
            assert abs(one - two).max() <= 1e-5 * abs(two).max()


@pytest.mark.parametrize(
    ("strong", "least", "most"),
    [(-1e4, 1e-4, 1e-3), (-1e5, 1e-3, 1e-2), (-np.inf, np.nan, np.nan)],
)
def test_after_a_strong_decay_their_chunks_are_less_exact_than_ours(strong, least, most, rng):
    """They subtract sums of log_decay from the start of the chunk, ours are of the part needed."""
    arrays = drawn(rng, strong=strong)
    exact, _ = mh.gated_delta_rule(*exactly(arrays))
    dout, dlast = np.zeros_like(arrays[2]), np.zeros_like(arrays[-1])
    found = ours(arrays, dout, dlast)[0]
    _, (chunks, settings) = functions()
    errors = [
        abs(out - exact).max() / abs(exact).max()
        for out in (found, theirs(chunks, arrays, dout, dlast, **settings)[0])
    ]
    assert errors[0] < 1e-6
    assert np.isnan(errors[1]) if strong == -np.inf else least < errors[1] < most


def exactly(arrays):
    """The arguments in float64, with scale and norms."""
    query, key, *others = (x.astype("float64") for x in arrays)
    query, key = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (query, key))
    return query / np.sqrt(D), key, *others

"""Rotary positions, compared with those of PyTorch and Hugging Face's transformers."""

import numpy as np
from with_transformers import MARKS

import minimha as mh

pytestmark = MARKS

H, T, D = 3, 5, 8


def angles():
    """(T, D/2), for the base 10,000."""
    return np.arange(T)[:, None] * 10_000.0 ** (-np.arange(D // 2) / (D // 2))


def test_halves_are_rotated_as_in_the_llama_of_transformers(rng):
    import torch
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k = rng.standard_normal((2, 1, H, T, D))
    both = torch.tensor(np.concatenate([angles(), angles()], axis=-1)[None])  # (1, T, D)
    theirs = apply_rotary_pos_emb(torch.tensor(q), torch.tensor(k), both.cos(), both.sin())
    for x, there in zip((q, k), theirs, strict=True):
        np.testing.assert_allclose(mh.positions.Rope()(x), there, rtol=0, atol=1e-12)


def test_neighbours_are_rotated_as_by_a_product_of_complex_numbers_in_torch(rng):
    import torch

    x = torch.tensor(rng.standard_normal((H, T, D)))
    angle = torch.tensor(angles())
    turned = torch.view_as_complex(x.reshape(H, T, D // 2, 2)) * torch.exp(1j * angle)
    theirs = torch.view_as_real(turned).reshape(H, T, D)
    ours = mh.positions.Rope(interleaved=True)(x.numpy())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)

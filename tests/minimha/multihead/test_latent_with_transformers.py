"""Latent attention and the attention of DeepSeek-V3 in Hugging Face's transformers have the same
outputs and gradients: to 1e-5 of the largest, since transformers computes norms and angles in
float32. Skipped if transformers is not installed."""

import numpy as np
import pytest
from with_transformers import MARKS

import minimha as mh

pytestmark = MARKS

B, T, M, H, C, D, DR, DV, CQ = 2, 7, 13, 3, 8, 5, 4, 6, 9


def by_head(x, *widths):
    """The columns of all heads, cut into parts: each head has so many columns of each part."""
    parts = np.split(x.reshape(len(x), H, sum(widths)), np.cumsum(widths)[:-1], axis=-1)
    return [part.reshape(len(x), -1) for part in parts]


def weights_of(theirs, read):
    """Their weights by our names; they store the transposes, and several of ours in one."""
    w = {name.removesuffix(".weight"): read(p).T for name, p in theirs.named_parameters()}
    w_uk, w_uv = by_head(w["kv_b_proj"], D, DV)
    w_uq, w_qr = by_head(w["q_b_proj" if "q_b_proj" in w else "q_proj"], D, DR)
    w_dkv, w_kr = np.split(w["kv_a_proj_with_mqa"], [C], axis=1)
    queries = {}
    if "q_a_proj" in w:
        queries = {"w_dq": w["q_a_proj"], "norm_q": w["q_a_layernorm"]}
    return queries | {
        "w_dkv": w_dkv, "norm_kv": w["kv_a_layernorm"], "w_kr": w_kr, "w_uk": w_uk, "w_uv": w_uv,
        "w_uq": w_uq, "w_qr": w_qr, "w_o": w["o_proj"],
    }  # fmt: skip


@pytest.mark.parametrize("absorbed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("query_latent", [None, CQ])
def test_it_is_the_attention_of_deepseek(query_latent, interleaved, absorbed, rng):
    import torch
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

    config = DeepseekV3Config(
        hidden_size=M, num_attention_heads=H, num_key_value_heads=H, kv_lora_rank=C,
        q_lora_rank=query_latent, qk_nope_head_dim=D, qk_rope_head_dim=DR, v_head_dim=DV,
        rope_interleave=interleaved, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        attn_implementation="eager",
    )  # fmt: skip
    theirs = deepseek.DeepseekV3Attention(config, 0).double()
    with torch.no_grad():
        for p in theirs.parameters():  # those of norms are 1
            p.add_(torch.tensor(rng.standard_normal(p.shape) / 3))
    x, dy = rng.standard_normal((2, B, T, M))
    leaf = torch.tensor(x, requires_grad=True)
    angles = deepseek.DeepseekV3RotaryEmbedding(config)(leaf, torch.arange(T)[None])
    hidden = torch.full((T, T), -torch.inf, dtype=torch.float64).triu(1)
    y, _ = theirs(leaf, angles, hidden)
    y.backward(torch.tensor(dy))

    ours = mh.LatentAttention(
        M, H, latent=C, head_dim=D, rope_dim=DR, v_head_dim=DV, query_latent=query_latent,
        rope=mh.positions.Rope(base=50.0, interleaved=interleaved), dtype="float64",
    )  # fmt: skip
    named = dict(ours.named_parameters())
    for name, w in weights_of(theirs, lambda p: p.detach().numpy()).items():
        named[name].data = np.array(w)
    own = mh.Tensor(x, requires_grad=True)
    out = ours(own, mh.masks.causal(), absorbed=absorbed)
    out.backward(dy)
    gradients = weights_of(theirs, lambda p: p.grad.numpy())
    assert gradients.keys() == named.keys()
    expected = {"out": y.detach().numpy(), "x": leaf.grad.numpy(), **gradients}
    found = {"out": out.data, "x": own.grad, **{name: p.grad for name, p in named.items()}}
    for name, value in expected.items():
        assert abs(found[name] - value).max() <= 1e-5 * abs(value).max(), name

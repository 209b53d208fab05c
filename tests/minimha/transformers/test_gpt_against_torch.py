"""A GPT written in plain torch, with the same weights, has the same logits and the same gradients
of all weights: to 1e-4 in float32 and 1e-10 in float64 of the largest entry. Skipped if torch is not
installed."""

import math

import pytest

import minimha as mh

torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
pytestmark = pytest.mark.thorough

BOUND = {"float32": 1e-4, "float64": 1e-10}
SMALL = {"vocabulary": 13, "context": 11, "d_model": 12, "num_heads": 3, "num_layers": 2}
LLAMA = {
    "num_kv_heads": 1, "head_dim": 6, "hidden": 17, "norm": "rms", "activation": "swiglu",
    "rope": mh.positions.Rope(50.0), "bias": False,
}  # fmt: skip
SETTINGS = {
    "biases": SMALL,
    "tied": SMALL | {"tie": True, "hidden": 17},
    "no biases": SMALL | {"bias": False, "activation": "relu", "norm_eps": 0.1},
    "tied, no biases": SMALL | {"bias": False, "tie": True},
    "llama": SMALL | LLAMA,
    "llama, tied": SMALL | LLAMA | {"tie": True, "bias": True, "norm_eps": 0.1},
}
RECIPE = {
    "vocabulary": 65, "context": 64, "d_model": 128, "num_heads": 4, "num_layers": 4, "bias": False,
    "tie": True,
}  # fmt: skip


def torch_gpt(p, tokens, *, num_heads, norm_eps=None, rope=None, activation="gelu", **_):
    """The logits, from our names for the weights; a bias that is not there is None."""

    def norm(x, name):
        weight, bias, width = p[f"{name}.weight"], p.get(f"{name}.bias"), x.shape[-1:]
        if rope:
            return F.rms_norm(x, width, weight, norm_eps or 1e-6)
        return F.layer_norm(x, width, weight, bias, norm_eps or 1e-5)

    def linear(x, weight, bias):
        return F.linear(x, p[weight].T, p.get(bias))

    def heads(x, role, d):  # (B, T, H·D) -> (B, H, T, D)
        y = linear(x, f"{a}.w_{role}", f"{a}.b_{role}")
        return y.unflatten(-1, (-1, d)).transpose(1, 2)

    def rotated(x):  # by halves
        half = x.shape[-1] // 2
        angles = t[:, None] * rope.base ** (-torch.arange(half, dtype=t.dtype) / half)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        one, other = x[..., :half], x[..., half:]
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)

    t = torch.arange(tokens.shape[1], dtype=torch.float64)
    future = torch.ones(len(t), len(t), dtype=torch.bool).triu(1)
    x = p["tokens.table"][tokens]
    if not rope:
        x = x + p["positions.table"][: len(t)]
    for n in range(len([name for name in p if name.endswith("attention.w_q")])):
        a, m = f"blocks.{n}.attention", f"blocks.{n}.mlp"
        y = norm(x, f"blocks.{n}.norm_attention")
        d = p[f"{a}.w_q"].shape[1] // num_heads
        q, k, v = (heads(y, role, d) for role in "qkv")
        if rope:
            q, k = rotated(q), rotated(k)
        k, v = (z.repeat_interleave(num_heads // z.shape[1], dim=1) for z in (k, v))
        scores = (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(y, f"{a}.w_o", f"{a}.b_o")
        y = norm(x, f"blocks.{n}.norm_mlp")
        wide = linear(y, f"{m}.widen.weight", f"{m}.widen.bias")
        if activation == "swiglu":
            wide = F.silu(linear(y, f"{m}.gate.weight", f"{m}.gate.bias")) * wide
        else:
            wide = F.gelu(wide, approximate="tanh") if activation == "gelu" else F.relu(wide)
        x = x + linear(wide, f"{m}.narrow.weight", f"{m}.narrow.bias")
    return norm(x, "norm") @ (p["head.weight"] if "head.weight" in p else p["tokens.table"].T)


def models(settings, dtype, rng):
    """A GPT in which no weight is zero, its weights for torch, and tokens (2, B, T)."""
    model = mh.GPT(**settings, dtype=dtype)
    for p in model.parameters():
        p.data = (p.data + 0.2 * rng.standard_normal(p.shape)).astype(dtype)
    weights = {n: torch.tensor(p.data, requires_grad=True) for n, p in model.named_parameters()}
    tokens = rng.integers(0, settings["vocabulary"], (2, 5, settings["context"] - 1))
    return model, weights, tokens


def assert_close(ours, theirs, dtype, least=0.0):
    """Equal to the bound of the largest entry; least is for gradients that are zero, as b_k's."""
    assert (ours.dtype, ours.shape) == (dtype, tuple(theirs.shape))
    difference = abs(ours - theirs.detach().numpy()).max()
    assert difference <= BOUND[dtype] * max(abs(theirs.detach().numpy()).max(), least)


def compare(settings, loss, dtype, rng):
    model, weights, (tokens, targets) = models(settings, dtype, rng)
    logits, expected = model(tokens), torch_gpt(weights, torch.tensor(tokens), **settings)
    assert_close(logits.data, expected, dtype)
    if loss == "cross entropy":
        ours = mh.functional.cross_entropy(logits, targets)
        theirs = F.cross_entropy(expected.flatten(0, 1), torch.tensor(targets).flatten())
        assert_close(ours.data, theirs, dtype)
        ours.backward()
        theirs.backward()
    else:
        cotangent = rng.standard_normal(logits.shape).astype(dtype)
        logits.backward(cotangent)
        expected.backward(torch.tensor(cotangent))
    largest = max(p.grad.abs().max().item() for p in weights.values())
    for name, p in model.named_parameters():
        assert_close(p.grad, weights[name].grad, dtype, largest / 1000)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("loss", ["random cotangent", "cross entropy"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_logits_and_all_gradients_are_those_of_torch(kind, loss, dtype, rng):
    compare(SETTINGS[kind], loss, dtype, rng)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("settings", [RECIPE, RECIPE | LLAMA])
def test_logits_and_all_gradients_are_those_of_torch_where_kernels_are_used(settings, dtype, rng):
    compare(settings, "cross entropy", dtype, rng)

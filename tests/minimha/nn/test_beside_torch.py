"""What chapters 09 and 10 say about PyTorch 2.13. It is checked where PyTorch is installed."""

import ast
import inspect
import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from layers import far

import minimha as mh
from minimha import functional, interchange

torch = pytest.importorskip("torch", reason="torch is not installed")
CHAPTER = Path(__file__).parents[3] / "notebooks" / "source" / "09_training.md"
B, T, M, H = 2, 5, 12, 3


def defaults(f):
    return {name: p.default for name, p in inspect.signature(f).parameters.items()}


def torch_block(without=()):
    """The layer in the chapter's table beside mh.Block, without some of its arguments."""
    page = CHAPTER.read_text(encoding="utf-8")
    (text,) = re.findall(r"^\| `mh\.Block\(M, H\)` \| `(.*)` \|$", page, re.MULTILINE)
    call = ast.parse(text, mode="eval")
    call.body.args = [a for a in call.body.args if ast.unparse(a) not in without]
    call.body.keywords = [k for k in call.body.keywords if k.arg not in without]
    names = {"torch": torch, "F": torch.nn.functional, "partial": partial, "M": M, "H": H}
    return eval(compile(call, str(CHAPTER), "eval"), names)


def apart(theirs, rng):
    """How far the outputs of the two blocks differ if they have the same weights."""
    ours = far(mh.Block(M, H, dtype="float64"), rng)
    weights = interchange.block_to_torch(ours)
    theirs.double().load_state_dict({name: torch.tensor(w) for name, w in weights.items()})
    x = rng.standard_normal((B, T, M))
    return abs(ours(x).data - theirs(torch.tensor(x)).detach().numpy()).max()


def test_the_layer_of_the_table_computes_what_the_block_does_also_in_training_mode(rng):
    layer = torch_block()
    assert layer.training
    assert apart(layer, rng) < 1e-12


@pytest.mark.parametrize("name", ["dropout", "activation", "batch_first", "norm_first"])
def test_without_one_of_its_arguments_the_layer_is_another_one(name, rng):
    assert apart(torch_block([name]), rng) > 1e-2


def test_the_defaults_of_the_layer():
    found = defaults(torch.nn.TransformerEncoderLayer)
    assert (found["dim_feedforward"], found["dropout"]) == (2048, 0.1)
    assert found["activation"] is torch.nn.functional.relu
    assert not found["batch_first"]
    assert not found["norm_first"]
    assert torch_block(["4 * M"]).linear1.out_features == 2048
    assert torch_block().linear1.out_features == mh.Block(M, H).mlp.widen.weight.shape[1] == 4 * M
    assert (mh.Block(M, H).dropout.p, mh.Block(M, H).mlp.activation) == (0, "gelu")


def test_gelu_by_name_is_the_exact_one_and_ours_differs_by_less_than_0_0005():
    x = np.linspace(-8, 8, 10_001)
    layer = torch.nn.TransformerEncoderLayer(M, H, activation="gelu")
    exact = layer.activation(torch.tensor(x)).numpy()
    normal = np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in x])
    np.testing.assert_allclose(exact, x * normal, rtol=0, atol=1e-15)
    assert 4e-4 < abs(functional.gelu(x) - exact).max() < 5e-4


def test_the_initial_weights_of_the_layer_differ():
    """There, those of Q, K and V are uniform, between bounds that normal ones exceed."""
    largest = torch_block().self_attn.in_proj_weight.abs().max().item()
    assert largest <= math.sqrt(6 / (M + 3 * M))
    assert abs(mh.Block(64, 4).attention.w_q.data).max() > math.sqrt(6 / (64 + 3 * 64))


def test_cross_entropy_has_its_classes_on_axis_1(rng):
    logits, targets = rng.standard_normal((B, T, 7)), rng.integers(7, size=(B, T))
    theirs = torch.nn.functional.cross_entropy
    of_rows = theirs(torch.tensor(logits).reshape(-1, 7), torch.tensor(targets).reshape(-1))
    on_axis_1 = theirs(torch.tensor(logits.transpose(0, 2, 1).copy()), torch.tensor(targets))
    assert functional.cross_entropy(logits, targets) == pytest.approx(of_rows.item(), rel=1e-12)
    assert on_axis_1.item() == pytest.approx(of_rows.item(), rel=1e-12)


def test_norms_and_the_variance(rng):
    x = rng.standard_normal((B, M))
    theirs = torch.nn.LayerNorm(M, dtype=torch.float64)(torch.tensor(x)).detach().numpy()
    ours = mh.LayerNorm(M, dtype="float64")(x).data
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    assert torch.tensor(x).var().item() == pytest.approx(x.var(ddof=1))
    assert torch.nn.RMSNorm(M).eps is None
    small = np.full((1, M), 1e-9)
    for dtype in ("float32", "float64"):
        eps = np.finfo(dtype).eps
        norm = torch.nn.RMSNorm(M, dtype=getattr(torch, dtype))
        found = norm(torch.tensor(small, dtype=getattr(torch, dtype)))[0, 0].item()
        assert found == pytest.approx(1e-9 / math.sqrt(1e-18 + eps), rel=1e-5)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_optimisers_have_the_same_defaults(name):
    ours, theirs = defaults(getattr(mh, name)), defaults(getattr(torch.optim, name))
    for setting in ("lr", "betas", "eps", "weight_decay"):
        assert ours[setting] == theirs[setting]
    assert not theirs.get("decoupled_weight_decay", False)  # so Adam adds it to the gradient


def test_attention_returns_the_weights_after_dropout_and_ours_before(rng):
    x = rng.standard_normal((1, 9, M)).astype("float32")
    theirs = torch.nn.MultiheadAttention(M, H, dropout=0.5, batch_first=True)
    _, weights = theirs(*[torch.tensor(x)] * 3, average_attn_weights=False)
    assert (weights == 0).any()
    assert abs(weights.sum(-1) - 1).max() > 0.1
    _, weights = theirs.eval()(*[torch.tensor(x)] * 3)
    assert abs(weights.sum(-1) - 1).max() < 1e-6
    ours = mh.MultiHeadAttention(M, H, dropout=0.5)
    _, weights = ours(x, rng=rng, return_weights=True)
    assert abs(weights.data.sum(axis=-1) - 1).max() < 1e-6


def test_three_ways_to_cut_the_graph():
    x = torch.tensor(2.0, requires_grad=True)
    assert not x.detach().requires_grad
    assert not x.data.requires_grad
    assert isinstance(x.item(), float)


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_torch_s_anomaly_mode_looks_for_nan_in_the_backward_pass():
    with torch.autograd.detect_anomaly():
        x = torch.tensor([0.0], requires_grad=True)
        y = torch.log(x) * 0
        assert y.isnan().all()  # no error in the forward pass
        with pytest.raises(RuntimeError, match="LogBackward0' returned nan"):
            y.backward()
        x = torch.tensor([0.0], requires_grad=True)
        torch.sqrt(x).backward()
        assert x.grad.isinf().all()  # nor for ∞


def test_after_zero_grad_a_gradient_is_none_or_zeros():
    x = torch.ones(2, requires_grad=True)
    optimiser = torch.optim.SGD([x], lr=0.1)
    for to_none in (True, False):
        x.sum().backward()
        optimiser.zero_grad(set_to_none=to_none)
        assert (x.grad is None) if to_none else (x.grad == 0).all()
    assert defaults(torch.optim.SGD.zero_grad)["set_to_none"]

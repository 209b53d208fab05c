"""Where Numba cannot be had, as in a browser, or is broken, everything works on the reference."""

import pytest
from processes import output_of

ABSENT = "ModuleNotFoundError(f'no {name}')"
BROKEN = ["ImportError('Numba needs NumPy 2.4\\nor less')", "SystemError('no\\ninitialization')"]

BLOCKED = """
import logging, os, sys
import numpy as np
logging.basicConfig(stream=sys.stdout, format="%(message)s")

class Blocker:
    def find_spec(self, name, *_):
        if name in ("numba", "safetensors", "scipy", "threadpoolctl"):
            raise {error}

sys.meta_path.insert(0, Blocker())
import minimha as mh
x = np.random.default_rng(0).standard_normal((1, 2, 96, 64))
y = mh.Tensor(x, requires_grad=True)
print("imported")
mh.scaled_dot_product_attention(y, y, y, mh.masks.causal()).sum().backward()
print(mh.explain_dispatch(x, x, x).implementation)
with mh.implementation("fused"):
    tiled = mh.scaled_dot_product_attention(x, x, x, implementation="tiled")
    fused = mh.scaled_dot_product_attention(x, x, x)
print(np.array_equal(tiled, fused) and "the same")
"""
WARNING = "minimha: {}; the reference takes over: the same results, but slower"


def test_whoever_asks_for_a_kernel_that_cannot_be_had_is_told_once():
    lines = output_of(BLOCKED.format(error=ABSENT)).splitlines()
    warning = WARNING.format("numba cannot be imported: no numba")
    assert lines == ["imported", "reference", warning, "the same"]


@pytest.mark.parametrize("error", BROKEN)
def test_a_broken_numba_is_reported_once_in_one_line(error):
    first, warning, *others = output_of(BLOCKED.format(error=error)).splitlines()
    why = " ".join(str(eval(error)).split())
    assert warning == WARNING.format(f"numba cannot be imported: {why}")
    assert [first, *others] == ["imported", "reference", "the same"]


COURSE = """
os.chdir(sys.argv[1])

def gelu(x):
    return 0.5 * x * (1 + mh.ops.erf(x / 2**0.5))

mh.gradcheck(gelu, mh.Tensor(x[0, 0, :3, :4]), method="complex step")
print(mh.ops.erf(np.array([0, 1, 2])).round(4), mh.ops.erf(np.ones(2, "complex64")).dtype)

def softmax(x):
    y = np.exp(x - x.max(-1, keepdims=True))
    y = y / y.sum(-1, keepdims=True)
    return y, lambda dy: (y * (dy - (dy * y).sum(-1, keepdims=True)),)

mh.homework.check(softmax)

tokens = np.arange(500) % 7
def training():
    model = mh.GPT(7, context=8, d_model=8, num_heads=2, num_layers=1, rng=0)
    return mh.training.Training(model, tokens, steps=4, batch=2, lr=1e-2)

whole, part, rest = training(), training(), training()
losses = [next(part), next(part)]
part.save("checkpoint.safetensors")
rest.resume("checkpoint.safetensors")
print([*losses, *rest] == list(whole), losses[0] > 0)
mh.pictures.save(mh.pictures.heat_map(x[0, 0, :5, :5]), "picture.png")
"""


@pytest.mark.thorough
def test_the_course_needs_no_package_that_a_browser_lacks(tmp_path):
    lines = output_of(BLOCKED.format(error=ABSENT) + COURSE, str(tmp_path)).splitlines()
    assert lines[4:] == [
        "[0.     0.8427 0.9953] complex64",
        "ok     softmax: each row is exp x over its sum",
        "ok     softmax: dx matches the numeric gradient",
        "ok     softmax: large entries do not overflow",
        "True True",
    ]
    assert (tmp_path / "picture.png").exists()

"""The kernels that a training step launches on a GPU, counted on the stand-in for CuPy.

The counts follow CuPy's source. A real GPU runs a few more kernels, since cuBLAS may use two for a
product.
"""

import cuda_on_cpu
import cupy_on_numpy
import numpy as np
import pytest

import minimha as mh
from minimha import functional, nn
from minimha_autograd import backend
from minimha_autograd.tape import saved_arrays

WHY = cuda_on_cpu.unavailable()


def compiles(test):
    """Marks a test that compiles kernels."""
    return pytest.mark.thorough(pytest.mark.skipif(WHY is not None, reason=str(WHY))(test))


LLAMA = {"norm": "rms", "activation": "swiglu", "bias": False, "rope": mh.positions.Rope()}


@pytest.fixture
def xp():
    with cupy_on_numpy.installed(), mh.implementation("reference"):
        yield backend.library("cupy")


COUNTS = {
    "nothing for a view": (lambda xp, x: (x.T, x[1:], xp.reshape(x, (-1,)), x[..., None].mT), {}),
    "nothing for the copy of a copy": (lambda xp, x: xp.astype(x, x.dtype, copy=False), {}),
    "nothing for an empty array": (lambda xp, x: (xp.empty((3,)), xp.empty_like(x)), {}),
    "zeros": (lambda xp, x: xp.zeros((3,)), {"zeros": 1}),
    "two operators": (lambda xp, x: x * 2 + x, {"mul": 1, "add": 1}),
    "one in place": (lambda xp, x: x.__iadd__(1.0), {"add in place": 1}),
    "a reshape that copies": (lambda xp, x: xp.reshape(x.T, (-1,)), {"reshape": 1}),
    "an assignment": (lambda xp, x: x.__setitem__(0, 1.0), {"setitem": 1}),
    "a product of a transpose": (lambda xp, x: x.T @ x, {"matmul": 1}),
    "a product that copies": (lambda xp, x: x[::2] @ x, {"matmul": 2}),
    "stacks of transposes": (lambda xp, x: x[None] @ x[None].mT, {"matmul": 2}),
    "each part of a concatenation": (lambda xp, x: xp.concat([x, x, x]), {"concatenate": 3}),
    "a sum of rows": (lambda xp, x: xp.sum(x, axis=-1), {"sum": 1}),
    "two for a sum of all": (lambda xp, x: xp.sum(x), {"sum": 2}),
    "a copy": (lambda xp, x: xp.asarray(x, copy=True), {"array": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_the_stand_in_counts(xp, name):
    call, counts = COUNTS[name]
    x = xp.asarray(np.ones((4, 4)))
    cupy_on_numpy.launches.clear()
    call(xp, x)
    assert +cupy_on_numpy.launches == counts


def test_arrays_change_in_place_and_views_know_their_base(xp):
    x = xp.asarray(np.ones((4, 3)))
    view = x.T[1:]
    assert x.base is None
    assert view.base is x
    y = x
    y += view[0, 0]
    assert y is x
    assert view[0, 0].item() == 2


def test_a_gradient_is_copied_only_if_something_else_refers_to_it(xp):
    x = mh.Tensor(xp.asarray(np.ones((4, 3))), requires_grad=True)
    cupy_on_numpy.launches.clear()
    (x * 2.0).backward(xp.ones((4, 3)))
    assert "array" not in cupy_on_numpy.launches
    seed = xp.ones((4, 3))
    x.grad = None
    (x + 1.0).backward(seed)
    assert x.grad is not seed
    x.grad = None
    mh.ops.reshape(x, (12,)).backward(xp.ones((12,)))
    assert x.grad.base is None  # a view of the seed would change with it


def launched(xp, **settings):
    """The kernels of the second training step of a GPT of six layers."""
    model = mh.GPT(65, context=16, d_model=24, num_heads=3, num_layers=6, **settings).to("cupy")
    optimiser = nn.AdamW(nn.decay_groups(model, 0.1), lr=1e-3)
    tokens, targets = (xp.asarray(np.arange(32).reshape(2, 16) * k % 65) for k in (7, 11))
    for _ in range(2):
        cupy_on_numpy.traffic.clear()
        cupy_on_numpy.launches.clear()
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(tokens), targets)
        loss.backward()
        nn.clip_gradients(optimiser.parameters, 1.0)
        optimiser.step()
    return +cupy_on_numpy.launches


@pytest.mark.parametrize("settings", [{"bias": True}, LLAMA], ids=["GPT-2", "Llama"])
@compiles
def test_a_training_step_of_six_layers_takes_at_most_350_kernels_and_none_waits(xp, settings):
    with mh.implementation("tiled"):
        launches = launched(xp, **settings)
    assert not cupy_on_numpy.traffic
    assert launches.total() <= 350, "\n".join(f"{n:4} {k}" for k, n in launches.most_common())


@compiles
def test_a_step_of_training_takes_no_more_and_reads_only_the_loss(xp):
    model = mh.GPT(65, context=16, d_model=24, num_heads=3, num_layers=6, bias=True).to("cupy")
    steps = iter(mh.training.Training(model, np.arange(500) % 65, steps=2, batch=2, lr=1e-3))
    with mh.implementation("tiled"):
        next(steps)
        cupy_on_numpy.traffic.clear()
        cupy_on_numpy.launches.clear()
        next(steps)
    launches = +cupy_on_numpy.launches
    assert launches["clip"] == launches["adamw"] == 2  # one for each group: matrices and vectors
    assert launches.total() <= 350, "\n".join(f"{n:4} {k}" for k, n in launches.most_common())
    assert +cupy_on_numpy.traffic == {"to the device": 2, "to the host": 1}


@compiles
def test_the_backward_saves_its_inputs_and_a_few_numbers_for_each_row(xp):
    """Besides the inputs, the reference saves more, except for softmax, whose result both save."""
    rng = np.random.default_rng(0)
    x, y, weight = (xp.asarray(rng.random(shape)) for shape in ((50, 40), (50, 40), (40,)))
    targets = xp.asarray(rng.integers(0, 40, 50))
    found = {}
    for name in ("reference", "tiled"):
        with mh.implementation(name):
            for operation, inputs in (
                (functional.layer_norm, (x, weight, weight)), (functional.rms_norm, (x, weight)),
                (functional.gelu, (x,)), (functional.silu, (x, y)), (functional.softmax, (x,)),
                (functional.cross_entropy, (x, targets)),
            ):  # fmt: skip
                _, pullback = operation.function(*inputs)
                saved = [a for a in saved_arrays(pullback) if all(a is not b for b in inputs)]
                distinct = {id(a): a.size for a in saved}
                found.setdefault(operation.__name__, []).append(sum(distinct.values()))
    assert {name: few for name, (_, few) in found.items()} == {
        "layer_norm": 2 * 50, "rms_norm": 2 * 50, "gelu": 0, "silu": 0, "softmax": 50 * 40,
        "cross_entropy": 2 * 50 + 50,
    }  # fmt: skip
    assert all(few < many for name, (many, few) in found.items() if name != "softmax")

"""Optimisers against formulas worked by hand and against torch; groups, state, clipping, schedule."""

import math
import tracemalloc

import numpy as np
import pytest

import minimha as mh
from minimha_autograd import backend

G = 0.2  # the gradients below are 0.2 and then 0.6


def after_two_steps(make):
    """The parameter, from 2, after gradients g and 3 g; another one never has a gradient."""
    p, idle = mh.Tensor([2.0], requires_grad=True), mh.Tensor([1.0], requires_grad=True)
    optimiser, values = make([p, idle]), []
    for g in (G, 3 * G):
        p.grad = np.array([g])
        optimiser.step()
        values.append(p.data.item())
    assert idle.data == 1
    optimiser.zero_grad()
    assert p.grad is None
    return values


def test_two_steps_of_sgd_with_momentum_by_hand():
    values = after_two_steps(lambda ps: mh.SGD(ps, 0.1, momentum=0.5, weight_decay=0.25))
    first = G + 0.25 * 2
    one = 2 - 0.1 * first
    second = 0.5 * first + 3 * G + 0.25 * one
    assert values == pytest.approx([one, one - 0.1 * second], rel=1e-14)


def test_in_adam_the_decay_is_part_of_the_gradient():
    """With β₁ = β₂ = 0 a step is lr · g / (|g| + eps), with g = 0.2 + 2 and then 0.6 + p."""
    values = after_two_steps(lambda ps: mh.Adam(ps, 0.1, betas=(0, 0), eps=1, weight_decay=1))
    one = 2 - 0.1 * 2.2 / 3.2
    assert values == pytest.approx([one, one - 0.1 * (0.6 + one) / (1.6 + one)], rel=1e-14)


def test_two_steps_of_adamw_by_hand():
    """m̂ = (0.1·0.9 g + 0.1·3 g)/0.19 and v̂ = (0.1·0.9 g² + 0.1·9 g²)/0.19 in the second step."""
    values = after_two_steps(
        lambda ps: mh.AdamW(ps, 0.1, betas=(0.9, 0.9), eps=0.01, weight_decay=0.5)
    )
    m, v = 0.39 / 0.19 * G, 0.99 / 0.19 * G**2
    one = 2 - 0.1 * (G / (G + 0.01) + 0.5 * 2)
    two = one - 0.1 * (m / (math.sqrt(v) + 0.01) + 0.5 * one)
    assert values == pytest.approx([one, two], rel=1e-14)


def test_an_l2_penalty_is_a_decay_in_sgd_without_momentum_but_not_with_it():
    lr, decay, gradients = 0.1, 0.3, (0.2, 0.6)
    for momentum in (0.0, 0.9):
        penalised, decayed = (mh.Tensor([2.0], requires_grad=True) for _ in range(2))
        with_penalty = mh.SGD([penalised], lr, momentum=momentum, weight_decay=decay)
        without = mh.SGD([decayed], lr, momentum=momentum)
        for g in gradients:
            penalised.grad = decayed.grad = np.array([g])
            with_penalty.step()
            before = decayed.data
            without.step()
            decayed.data = decayed.data - lr * decay * before
        same = math.isclose(penalised.data.item(), decayed.data.item(), rel_tol=1e-12)
        assert same == (momentum == 0)


def test_the_first_step_of_adam_is_shorter_for_gradients_near_eps():
    """lr · g / (|g| + eps), and no step for g = 0."""
    p = mh.Tensor(np.zeros(5), requires_grad=True)
    p.grad = np.array([4.0, -1e-8, 1e-10, 0.0, -4e5])
    mh.Adam([p], lr=0.1, eps=1e-8).step()
    np.testing.assert_allclose(p.data, [-0.1, 0.05, -0.1 / 101, 0, 0.1], rtol=1e-8)


def test_a_clipped_step_of_sgd_is_at_most_lr_times_the_limit(rng):
    p = mh.Tensor(np.zeros(5), requires_grad=True)
    for size in (1e-3, 1.0, 1e6):
        before, p.grad = p.data, size * rng.standard_normal(5)
        mh.nn.clip_gradients([p], 0.5)
        mh.SGD([p], lr=0.1).step()
        assert np.linalg.norm(p.data - before) <= 0.1 * 0.5


KINDS = {
    "SGD": {"lr": 0.1},
    "SGD with momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.3},
    "Adam": {"lr": 0.03, "betas": (0.8, 0.95)},
    "Adam with decay": {"lr": 0.03, "betas": (0.8, 0.95), "eps": 0.1, "weight_decay": 0.3},
    "AdamW": {"lr": 0.03, "betas": (0.8, 0.95), "weight_decay": 0.3},
}
SHAPES = [(4, 3), (3,), (2, 1, 5)]


def made(kind, tensors, library=mh):
    """An optimiser whose second parameter has its own decay and whose third has its own lr."""
    groups = [{"params": [tensors[0]]}, {"params": [tensors[1]], "weight_decay": 0.7}]
    groups.append({"params": [tensors[2]], "lr": 0.5})
    return getattr(library, kind.split()[0])(groups, **KINDS[kind])


def drawn(rng):
    return [mh.Tensor(rng.standard_normal(shape), requires_grad=True) for shape in SHAPES]


@pytest.mark.thorough  # the first optimiser loads much of torch
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_is_that_of_torch(kind, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    ours = drawn(rng)
    theirs = [torch.tensor(p.data, requires_grad=True) for p in ours]
    one, other = made(kind, ours), made(kind, theirs, torch.optim)
    for step in range(20):
        for k, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            g = rng.standard_normal(p.shape) if step >= 5 * k else None  # t counts from here
            p.grad, q.grad = g, g if g is None else torch.tensor(g)
        if step == 12:
            one.lr = 0.01
            for group in other.param_groups[:2]:  # the third keeps its own
                group["lr"] = 0.01
        one.step()
        other.step()
        for p, q in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimiser_continues_from_its_state_bit_for_bit(kind, rng, xp):
    tensors = drawn(rng)
    for p in tensors:
        p.data = backend.move(p.data.astype("float32"), xp)
    gradients = [[rng.standard_normal(s).astype("float32") for s in SHAPES] for _ in range(4)]

    def steps(optimiser, some):
        for gs in some:
            for p, g in zip(optimiser.parameters, gs, strict=True):
                p.grad = backend.move(g, xp)
            optimiser.step()
        return [backend.to_numpy(p.data) for p in optimiser.parameters]

    optimiser = made(kind, tensors)
    steps(optimiser, gradients[:2])
    copies = [mh.Tensor(p.data, requires_grad=True) for p in tensors]
    state = optimiser.state()
    expected = steps(optimiser, gradients[2:])
    again = made(kind, copies)
    again.set_state(state)
    for x, y in zip(steps(again, gradients[2:]), expected, strict=True):
        assert (x.dtype, x.tobytes()) == (np.float32, y.tobytes())


def test_a_state_that_does_not_fit_is_refused_and_every_difference_is_named(rng):
    def adam(*shapes):
        return mh.AdamW([mh.Tensor(np.zeros(shape), requires_grad=True) for shape in shapes])

    optimiser = adam((2, 3), (4,))
    before = optimiser.state()
    wrong = {**adam((2, 3), (5,)).state(), "1.v": 7, "2.m": np.zeros(3)}
    del wrong["0.t"]
    with pytest.raises(ValueError, match="does not fit the optimiser") as failure:
        optimiser.set_state(wrong)
    assert str(failure.value).partition(": ")[2].split("; ") == [
        "0.t is missing",
        "2.m is extra",
        "1.m is float64 (5,), but must be float64 (4,)",
        "1.v is 7, but must be float64 (4,)",
    ]
    np.testing.assert_equal(optimiser.state(), before)


def test_a_step_frees_the_old_values_of_large_parameters_one_after_the_other():
    params = [mh.Tensor(np.ones(2**20, "float32"), requires_grad=True) for _ in range(8)]
    for implementation in ("reference", "auto"):
        with mh.implementation(implementation):
            optimiser = mh.nn.AdamW(params)
            for p in params:
                p.grad = np.ones(2**20, "float32")
            tracemalloc.start()
            try:
                optimiser.step()  # all arrays are traced from now on
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                optimiser.step()
                more = tracemalloc.get_traced_memory()[1] - before
            finally:
                tracemalloc.stop()
        assert more < 6 * 2**22  # p, m and v of one parameter, and what the formula needs


def test_a_tied_parameter_is_updated_once():
    p = mh.Tensor([1.0], requires_grad=True)
    for make in (mh.SGD, mh.AdamW):
        p.data, p.grad = np.array([1.0]), np.array([1.0])
        make([p, p], lr=0.1, weight_decay=0.0).step()
        assert p.data.item() == pytest.approx(0.9, rel=1e-7)


def test_a_group_keeps_its_own_settings_and_takes_the_others_from_the_optimiser():
    a, b = (mh.Tensor([1.0], requires_grad=True) for _ in range(2))
    optimiser = mh.SGD([{"params": [a]}, {"params": [b], "lr": 0.5}], 0.1, weight_decay=1.0)
    optimiser.lr = 0.2
    a.grad = b.grad = np.array([1.0])
    optimiser.step()
    assert (a.data.item(), b.data.item()) == pytest.approx((1 - 0.2 * 2, 1 - 0.5 * 2))


P = mh.Tensor([1.0], requires_grad=True)


@pytest.mark.parametrize(("parameters", "error", "message"), [
    (P, TypeError, r"list of Tensors: write \[tensor\]"),
    (mh.Linear(1, 1), TypeError, r"write model\.parameters\(\)"),
    ([("weight", P)], TypeError, "must be Tensors, not a tuple"),
    ([np.ones(3)], TypeError, "must be Tensors, not numpy.ndarray"),
    ([{"params": [P]}, {"params": [P], "lr": 1.0}], ValueError, "in two groups"),
    ([{"params": [P], "decay": 0.1}], TypeError, "no setting decay: there are lr, momentum"),
])  # fmt: skip
def test_parameters_that_cannot_be_optimised_are_refused(parameters, error, message):
    with pytest.raises(error, match=message):
        mh.SGD(parameters, lr=0.1)


def test_a_learning_rate_from_numpy_does_not_change_the_dtype():
    p = mh.Tensor(np.ones(3, "float32"), requires_grad=True)
    for optimiser in (mh.SGD([p], np.float64(0.1)), mh.AdamW([p], np.float64(0.1))):
        p.grad = p.data
        optimiser.step()
        assert p.data.dtype == np.float32


def test_matrices_decay_and_vectors_do_not():
    model = mh.Linear(2, 3)
    model.norm, model.cube = mh.LayerNorm(4), mh.Tensor(np.ones((2, 3, 4)), requires_grad=True)
    decayed, others = mh.nn.decay_groups(model, 0.3)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0)
    assert [p.ndim for p in decayed["params"]] == [2, 3]
    assert [p.shape for p in others["params"]] == [(3,), (4,), (4,)]
    bilinear = mh.MultiHeadAttention(8, 2, form="bilinear")
    assert any(p is bilinear.b_qk for p in mh.nn.decay_groups(bilinear, 0.3)[0]["params"])


def with_gradients(*gradients):
    tensors = [mh.Tensor(np.ones(np.shape(g)), requires_grad=True) for g in gradients]
    for p, g in zip(tensors, gradients, strict=True):
        p.grad = np.asarray(g)
    return [*tensors, mh.Tensor([1.0], requires_grad=True)]  # the last one has no gradient


def test_clipping_scales_all_gradients_to_the_norm_and_keeps_their_direction():
    tensors = with_gradients([3.0, 0.0], [[4.0]])
    assert mh.nn.clip_gradients(tensors, 2.0) == 5
    np.testing.assert_allclose(tensors[0].grad, [1.2, 0], rtol=1e-6)
    np.testing.assert_allclose(tensors[1].grad, [[1.6]], rtol=1e-6)
    assert tensors[2].grad is None
    assert mh.nn.clip_gradients(tensors, 2.1) == pytest.approx(2, rel=1e-6)
    np.testing.assert_allclose(tensors[1].grad, [[1.6]], rtol=1e-6)  # short enough already


@pytest.mark.filterwarnings("ignore:overflow")
def test_gradients_whose_squares_overflow_become_0_as_in_torch():
    torch = pytest.importorskip("torch")
    p, theirs = mh.Tensor(np.zeros(2, "f4"), requires_grad=True), torch.zeros(2, requires_grad=True)
    p.grad, theirs.grad = np.array([1e20, 1.0], "f4"), torch.tensor([1e20, 1.0])
    assert mh.nn.clip_gradients([p], 1e30) == math.inf
    assert torch.nn.utils.clip_grad_norm_([theirs], 1e30) == math.inf
    assert not p.grad.any()
    assert not theirs.grad.any()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("special", [0.0, 1e-9, 1.0, np.nan, np.inf])
@pytest.mark.parametrize("bound", [0.5, 50.0])
def test_clipping_is_that_of_torch(special, bound, rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    gradients = [rng.standard_normal((4, 3)), special * rng.standard_normal(5)]
    ours = with_gradients(*gradients)
    theirs = [torch.ones(g.shape, dtype=torch.float64, requires_grad=True) for g in gradients]
    for q, g in zip(theirs, gradients, strict=True):
        q.grad = torch.tensor(g)
    norm = mh.nn.clip_gradients(ours, bound)
    np.testing.assert_allclose(norm, torch.nn.utils.clip_grad_norm_(theirs, bound), rtol=1e-14)
    for p, q in zip(ours, theirs, strict=False):
        np.testing.assert_allclose(p.grad, q.grad, rtol=1e-14)


def test_the_learning_rate_rises_linearly_and_falls_along_half_a_cosine():
    rates = [mh.nn.warmup_cosine(k, steps=10, warmup=4, lr=1.0, min_lr=0.2) for k in range(12)]
    assert rates[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert rates[7] == pytest.approx(0.6, rel=1e-14)  # halfway down
    assert rates[5] == pytest.approx(0.6 + 0.4 * math.cos(math.pi / 6), rel=1e-14)
    assert rates[10:] == [0.2, 0.2]
    assert mh.nn.warmup_cosine(0, steps=3, warmup=0, lr=1.0, min_lr=0.2) == 1


HALF = ["float16", "bfloat16"]


def half(numbers, dtype):
    """A parameter of 16 bits."""
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    return mh.Tensor(np.array(numbers).astype(dtype), requires_grad=True)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "make",
    [
        lambda ps: mh.SGD(ps, 1e-3, momentum=0.5, weight_decay=0.1),
        lambda ps: mh.Adam(ps, 1e-3, weight_decay=0.1),
        lambda ps: mh.AdamW(ps, 1e-3),
    ],
    ids=["SGD", "Adam", "AdamW"],
)
def test_a_parameter_of_16_bits_follows_one_in_float32(make, dtype):
    """Over 200 steps, each smaller than the distance to the next 16-bit number, with gradients whose
    squares are too large or too small for float16."""
    p = half([1.0, -2.0, 3.0, 100.0], dtype)
    gradients = np.array([300, 1e-5, -0.4, 1.0]).astype(dtype)
    q = mh.Tensor(p.data.astype("float32"), requires_grad=True)
    ours, theirs = make([p]), make([q])
    for _ in range(200):
        p.grad, q.grad = gradients, gradients.astype("float32")
        ours.step()
        theirs.step()
    assert p.dtype == dtype
    np.testing.assert_array_equal(p.data, q.data.astype(dtype))


@pytest.mark.parametrize("dtype", HALF)
def test_the_state_of_a_parameter_of_16_bits_continues_it(dtype):
    def step(optimiser, p):
        p.grad = np.array([0.3, -1.0]).astype(dtype)
        optimiser.step()

    p = half([1.0, 2.0], dtype)
    first = mh.AdamW([p], 1e-4)
    step(first, p)
    q = mh.Tensor(p.data.copy(), requires_grad=True)
    second = mh.AdamW([q], 1e-4)
    second.set_state(first.state())
    assert {x.dtype.name for n, x in first.state().items() if n != "0.t"} == {"float32"}
    for _ in range(30):
        step(first, p)
        step(second, q)
    np.testing.assert_array_equal(p.data, q.data)
    assert (first.state()["0.master"] == second.state()["0.master"]).all()


@pytest.mark.parametrize("dtype", HALF)
def test_a_weight_of_16_bits_that_is_set_has_this_value_and_no_other(dtype):
    """Set as an array, entry by entry, or by a module's state; the other entries keep the digits
    that rounding hides."""

    def assigned(p, numbers):
        p.data = numbers

    def in_place(p, numbers):
        p.data[...] = numbers

    for change in (assigned, in_place):
        p = half([1000.0, 1000.0], dtype)
        optimiser = mh.SGD([p], 1.0)
        p.grad = np.full(2, -0.2, dtype)  # 1000 + 0.2 is 1000 in 16 bits
        optimiser.step()
        change(p, np.array([0.0, 1000.0], dtype))
        for _ in range(9):
            optimiser.step()
        hidden = np.float32(1000)
        for _ in range(10):
            hidden -= np.float32(p.grad[0])
        expected = np.array([np.float32(-p.grad[0]) * 9, hidden], "float32").astype(dtype)
        np.testing.assert_array_equal(p.data, expected)


@pytest.mark.parametrize("dtype", HALF)
def test_a_weight_of_16_bits_set_after_the_state_of_an_optimiser_has_this_value(dtype):
    p, q = half([1000.0], dtype), half([1000.0], dtype)
    first, second = mh.SGD([p], 1.0), mh.SGD([q], 1.0)
    p.grad = np.full(1, -0.2, dtype)
    first.step()
    second.set_state(first.state())
    q.data = np.zeros(1, dtype)
    q.grad = np.zeros(1, dtype)
    second.step()
    assert float(q.data[0]) == 0


@pytest.mark.filterwarnings("ignore")  # infinity
def test_a_weight_of_16_bits_returns_from_infinity():
    """65,504 is the largest float16; the master copy in float32 is 66,000."""
    p = half([65_000.0], "float16")
    optimiser = mh.SGD([p], 1.0)
    seen = []
    for gradient in (-1000.0, 1000.0, 1000.0):
        p.grad = np.full(1, gradient, "float16")
        optimiser.step()
        seen.append(float(p.data[0]))
    assert seen == [math.inf, 64_992.0, 64_000.0]


@pytest.mark.parametrize("dtype", HALF)
def test_a_weight_that_becomes_one_of_16_bits_is_updated_in_16_bits(dtype):
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    p = mh.Tensor(np.ones(3, "float32"), requires_grad=True)
    optimiser = mh.AdamW([p], 1e-4, weight_decay=0.0)
    p.data = p.data.astype(dtype)
    for _ in range(200):
        p.grad = np.ones(3, dtype)
        optimiser.step()
    assert p.dtype == dtype
    np.testing.assert_allclose(p.data.astype(float), 0.98, rtol=2**-8)


@pytest.mark.half
@pytest.mark.parametrize("dtype", HALF)
def test_gradients_of_16_bits_are_clipped_in_float32(dtype, place):
    """300² and the sum of the squares are too large for float16."""
    if not (hasattr(place.xp, dtype) or backend.indexes_as_numpy(place.xp)):
        pytest.skip(f"no {dtype} there")
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    gradient = mh.Tensor(place(np.full(10_000, 300, "float32"))).astype(dtype).data
    p = mh.Tensor(gradient, requires_grad=True)
    p.grad = gradient
    norm = mh.nn.clip_gradients([p], 1.0)
    assert float(norm) == pytest.approx(30_000, rel=1e-3)  # the sum is one of float32
    assert p.grad.dtype == p.dtype
    rounding = 2**-8 if dtype == "bfloat16" else 2**-11
    np.testing.assert_allclose(backend.to_numpy(p.grad).astype(float), 0.01, rtol=rounding)

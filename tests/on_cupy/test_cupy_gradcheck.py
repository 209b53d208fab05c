"""The gradient check allows for additions in another order, and for no other difference."""

import numpy as np
import pytest

import minimha as mh
from minimha import functional
from minimha_autograd import backend, ops


def sums_to_zero(table, rows, factors):
    """Σ fᵢ · tableᵣᵢ with Σ fᵢ = 0: the gradient is 0, and only rounding is left of it."""
    chosen = functional.embedding(table, rows)
    factors = ops.astype(factors, dtype=table.dtype)
    return (chosen * factors).sum(axis=0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradcheck_allows_another_order_of_additions(there, dtype):
    rng = np.random.default_rng(0)
    rows = there(rng.integers(0, 2, 3000))
    table = mh.Tensor(there(rng.standard_normal((2, 3)).astype(dtype)))
    mh.gradcheck(lambda table: functional.embedding(table, rows), table)
    mh.gradcheck(lambda table: table[rows], table)
    factors = rng.standard_normal((64, 1))
    factors = there(factors - factors.mean())
    same = there(np.zeros(64, int))
    mh.gradcheck(lambda table: sums_to_zero(table, same, factors), table)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("amount", [1.0, 1e-3])
def test_gradcheck_finds_a_pullback_that_draws_on_the_device(there, dtype, amount):
    draws = np.random.default_rng(0)
    rows = there(np.zeros(64, int))
    signs = there(np.where(np.arange(64) % 2, 1.0, -1.0)[:, None])

    def noisy(operation):
        def f(table):
            y, pull = operation(table)

            def pullback(dy):
                dx = pull(dy)[0]
                factors = 1 + amount * draws.standard_normal(tuple(dx.shape))
                return (dx * backend.like(factors.astype(dtype), dx),)

            return y, pullback

        return f

    def shifted(table):
        y, pull = ops.getitem.with_pullback(table, rows)
        signs_here = backend.namespace(y).astype(signs, y.dtype)

        def pullback(dy):
            noise = amount * draws.standard_normal(tuple(table.shape))
            dx = pull(dy * signs_here)[0]
            return (dx + backend.like(noise.astype(dtype), dx),)

        return backend.namespace(y).sum(y * signs_here, axis=0), pullback

    table = there(np.random.default_rng(1).standard_normal((1, 3)).astype(dtype))
    for f in (noisy(lambda table: ops.getitem.with_pullback(table, rows)), shifted):
        with pytest.raises(mh.GradcheckError, match=r"two gradients of table: does it draw"):
            mh.gradcheck(f, table)

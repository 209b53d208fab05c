"""The option --other-cpu: which results change, by how much, and what it reaches."""

import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from other_cpu import other_cpu

SEEDS = pytest.mark.parametrize(
    "seed", [1, *(pytest.param(k, marks=pytest.mark.thorough) for k in (2, 3))]
)
LETTERS = "fdFD"
WIDE = {"e": "d", "f": "d", "d": "g", "F": "D", "D": "G"}
"""For each dtype, one whose rounding errors are much smaller."""


@pytest.fixture(autouse=True)
def here():
    """Outside other_cpu NumPy rounds as usual, even if the option is given."""
    with other_cpu(None):
        yield


def numbers(rng, shape, letter):
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if letter in "FD" else x).astype(letter)


def differ(one, other):
    return bool((one != other).any())


def times(a, b):
    return a @ b


WAYS = {
    "@": times,
    "matmul": np.matmul,
    "dot": lambda a, b: np.dot(a, b),
    "x.dot": lambda a, b: a.dot(b),
    "inner": lambda a, b: np.inner(a, b.T),
    "einsum": lambda a, b: np.einsum("ij,jk->ik", a, b),
    "einsum by BLAS": lambda a, b: np.einsum("ij,jk->ik", a, b, optimize=True),
    "tensordot": lambda a, b: np.tensordot(a, b, 1),
    "vecdot": lambda a, b: np.vecdot(a.conj()[:, None], b.T),
    "outputs given": lambda a, b: np.matmul(a, b, out=np.empty((len(a), b.shape[1]), a.dtype)),
    "in columns": lambda a, b: np.matmul(a, b, out=np.empty((b.shape[1], len(a)), a.dtype).T),
    "batches": lambda a, b: (np.stack([a] * 3) @ b)[1],
    "spread batches": lambda a, b: (np.stack([a] * 6, axis=1).swapaxes(0, 1)[::2] @ b)[2],
}


@SEEDS
@pytest.mark.parametrize("letter", "efdFD")
@pytest.mark.parametrize("way", WAYS)
def test_a_product_is_off_by_rounding_only(way, letter, seed, rng):
    a = numbers(rng, (37, 51), letter)
    b = numbers(rng, (51, 29), letter)
    here = WAYS[way](a, b)
    with other_cpu(seed):
        there = WAYS[way](a, b)
    exact = a.astype(WIDE[letter]) @ b.astype(WIDE[letter])
    terms = abs(a).astype(float) @ abs(b).astype(float)
    eps = np.finfo(letter).eps
    # A sum of 51 terms may be off by 51 · eps/2 · Σ |terms|; a complex term counts twice.
    assert (abs(there - exact) <= 51 * eps * terms).all()
    assert there.dtype == here.dtype
    assert letter == "e" or differ(here, there)


@SEEDS
@pytest.mark.parametrize("letter", LETTERS)
def test_bits_of_a_product_depend_on_strides_rows_columns_and_threads(letter, seed, rng):
    a = numbers(rng, (37, 51), letter)
    b = numbers(rng, (51, 29), letter)
    with other_cpu(seed):
        y = a @ b
        assert differ(y, np.asfortranarray(a) @ b)
        assert differ(y, a @ np.asfortranarray(b))
        assert differ(y[:20], a[:20] @ b)
        assert differ(y[5:6], a[5:6] @ b)
        assert differ(y[:, :13], a @ b[:, :13].copy())
        assert differ((np.vstack([a[:1]] * 15) @ b)[0], (np.vstack([a[:1]] * 15) @ b)[14])


def test_bits_depend_on_the_seed(rng):
    a = rng.standard_normal((37, 51))
    found = []
    for seed in range(4):
        with other_cpu(seed):
            found += [(a @ a.T[:, :9], np.exp(a), a.sum(axis=1))]
    for one, other in itertools.combinations(found, 2):
        assert all(map(differ, one, other))


@SEEDS
def test_the_same_call_on_the_same_layout_gives_the_same_bits(seed, rng):
    a = rng.standard_normal((37, 51)).astype("float32")
    b = rng.standard_normal((51, 29)).astype("float32")
    found = []

    def call():
        found.append([a.copy() @ b, np.tanh(a.copy()), a.copy().mean(axis=1), np.cumsum(a)])

    with other_cpu(seed):
        call()
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@SEEDS
def test_matrices_of_a_batch_are_multiplied_as_they_are_alone(seed, rng):
    a = rng.standard_normal((5, 12, 16))
    b = rng.standard_normal((5, 16, 14))
    with other_cpu(seed):
        for k, y in enumerate(a @ b):
            np.testing.assert_array_equal(y, a[k] @ b[k])


@SEEDS
@pytest.mark.parametrize("letter", "efdFD")
def test_exact_results_stay_exact(letter, seed, rng):
    a = rng.integers(-3, 4, (37, 51)).astype(letter)
    b = rng.integers(-3, 4, (51, 29)).astype(letter)
    with other_cpu(seed):
        for way in WAYS.values():
            np.testing.assert_array_equal(way(a, b), a.astype("D") @ b.astype("D"))
        for total in (a.sum(), np.add.reduce(a, axis=None), np.cumsum(a)[-1], a.sum(0).sum()):
            assert total == a.astype("D").sum()
        assert a.mean(where=a == 2) == 2
        np.testing.assert_array_equal(a.sum(axis=(0, 1), keepdims=True, initial=5), 5 + a.sum())


@SEEDS
@pytest.mark.parametrize("letter", "efd")
def test_functions_keep_their_exact_values_and_their_bounds(letter, seed):
    tiny = np.full(21, 3e-5 if letter == "e" else 1e-30, letter)
    with other_cpu(seed):
        for f, x, y in [
            (np.exp, 0, 1), (np.log, 1, 0), (np.cos, 0, 1), (np.tanh, 0, 0), (np.log2, 8, 3),
            (np.exp, -np.inf, 0), (np.log, 0, -np.inf), (np.tanh, np.inf, 1), (np.exp2, 5, 32),
        ]:  # fmt: skip
            with np.errstate(divide="ignore"):
                np.testing.assert_array_equal(f(np.full(21, x, letter)), y)
        for f in (np.tanh, np.sin, np.expm1, np.log1p, np.arctan):
            in_place = tiny.copy()
            np.testing.assert_array_equal(f(tiny), tiny)
            np.testing.assert_array_equal(f(in_place, out=in_place), tiny)
        assert np.isnan(np.exp(np.full(9, np.nan, letter))).all()
        x = np.linspace(0, 12, 1001).astype(letter)
        assert abs(np.tanh(x)).max() <= 1
        assert abs(np.cos(x)).max() <= 1
        assert (np.exp(-x) <= 1).all()
        np.testing.assert_array_equal(np.logaddexp(x, np.asarray(-np.inf, letter)), x)


@SEEDS
@pytest.mark.parametrize("letter", "efdFD")
@pytest.mark.parametrize("f", [np.exp, np.log, np.tanh, np.sin, np.log1p, lambda x: x**2.7])
def test_functions_change_by_one_unit_in_the_last_place(f, letter, seed, rng):
    x = abs(rng.standard_normal(501)).astype(letter)
    if letter in "FD":
        x = x + 1j * x.real[::-1]
    here = f(x)
    with other_cpu(seed):
        there = f(x)
        assert differ(there[:30], f(x[:30].copy()))  # its last few entries
        assert differ(there[::2], f(x[::2]))
    assert 0.3 < (here != there).mean() < (0.6 if letter in "efd" else 0.9)
    for part in (np.real, np.imag):
        units = np.spacing(np.maximum(abs(part(here)), abs(part(there))))
        assert (abs(part(here) - part(there)) <= units).all()


@SEEDS
def test_equal_entries_inside_an_array_have_equal_results(seed):
    with other_cpu(seed):
        y = np.exp(np.full(83, 0.3))
    assert len(set(y[:80])) == 1


SUMS = {
    "sum": lambda x: x.sum(axis=-1),
    "np.sum": lambda x: np.sum(x, axis=-1),
    "columns": lambda x: x.T.sum(axis=0),
    "mean": lambda x: np.mean(x, axis=-1),
    "var": lambda x: x.var(axis=-1),
    "std": lambda x: np.std(x, axis=-1),
    "cumsum": lambda x: x.cumsum(axis=-1)[:, -1],
    "prod": lambda x: x.prod(axis=-1),
    "logaddexp": lambda x: np.logaddexp.reduce(x, axis=-1),
    "norm": lambda x: np.linalg.norm(x, axis=-1),
    "einsum": lambda x: np.einsum("ij->i", x),
}


@SEEDS
@pytest.mark.parametrize("letter", "fd")
@pytest.mark.parametrize("way", SUMS)
def test_a_sum_is_off_by_rounding_only(way, letter, seed, rng):
    x = rng.uniform(0.5, 1.5, (40, 97)).astype(letter)
    here = SUMS[way](x)
    with other_cpu(seed):
        there = SUMS[way](x)
    assert differ(here, there)
    assert there.dtype == here.dtype
    # All terms are positive: each of 97 additions adds eps/2 of the result at most.
    np.testing.assert_allclose(there, here, rtol=97 * np.finfo(letter).eps)


@SEEDS
def test_warnings_stay(seed):
    many = np.full((12, 12), 1e200)
    with other_cpu(seed):
        for f, what in [
            (lambda: many @ many, "overflow"), (lambda: np.exp(many), "overflow"),
            (lambda: np.log(0 * many), "divide by zero"), (lambda: np.log(-many), "invalid value"),
        ]:  # fmt: skip
            with pytest.warns(RuntimeWarning, match=what):
                f()
        assert np.isfinite(np.exp(-many)).all()  # and this warns of nothing


@SEEDS
def test_symmetric_products_are_symmetric(seed, rng):
    x = rng.standard_normal((21, 33))
    with other_cpu(seed):
        y = x @ x.T
        np.testing.assert_array_equal(y, y.T)


def test_afterwards_numpy_rounds_as_before(rng):
    x = rng.standard_normal((37, 51))
    before = x @ x.T[:, :9], np.exp(x), x.sum(axis=1)
    with other_cpu(1):
        there = x @ x.T[:, :9], np.exp(x), x.sum(axis=1)
    after = x @ x.T[:, :9], np.exp(x), x.sum(axis=1)
    for one, other, again in zip(before, there, after, strict=True):
        assert differ(one, other)
        np.testing.assert_array_equal(one, again)


def test_the_option_reaches_workers_and_skips_what_needs_this_cpu(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_bits.py").write_text(TESTS)
    options = ["-n1", "--other-cpu=1", "--rootdir", tmp_path, "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", *options, "--array-backend=numpy"]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        command, text=True, capture_output=True, env=here, cwd=tmp_path, check=False
    )
    assert "1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "this is the reason" in done.stdout


TESTS = """
import numpy as np, pytest

x = np.linspace(0.1, 0.2, 500)
part = np.exp(x[:20]) == np.exp(x)[:20]

@pytest.mark.this_cpu("this is the reason")
def test_one():
    assert part.all()

def test_two():
    assert not part.all()
"""


def test_kernels_compiled_under_the_option_contain_numbas_own_dot(rng):
    numba = pytest.importorskip("numba")
    a = rng.standard_normal((4, 7))
    b = rng.standard_normal((7, 5))
    with other_cpu(1):
        kernel = numba.njit(lambda a, b: np.dot(a, b))
        assert kernel(a, b) == pytest.approx(a @ b)

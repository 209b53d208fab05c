"""Errors from PyTorch habits say what to write in NumPy."""

import linecache
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from minimha.homework.checks.error_messages import error_with_line

DOT = "(…, n, k) by (…, k, m)"
HABITS = {
    "x.view(2, -1)": "x.reshape",
    "x.transpose(-3, -2)": "x.swapaxes(-3, -2)",
    "np.transpose(x, 1, 2)": "x.swapaxes(1, 2)",
    "x.sum(-1, keepdim=True)": "keepdims=True",
    "x.max(dim=-1)": "axis=-1",
    "x.cumsum(dim=-1)": "axis=-1",
    "x.std(-1, unbiased=False)": "leave it out",
    "x.max(-1).values": "returns the values alone",
    "x.masked_fill(x > 0, 1)": "np.where",
    "x.unsqueeze(1)": "x[:, None]",
    "x.permute(0, 2, 1)": "x.transpose(0, 2, 1)",
    "x.size(-1)": "x.shape[-1]",
    "x.shape(0)": "square brackets",
    "x.exp()": "np.exp(x)",
    "np.softmax(x)": "there is no softmax",
    "np.cat([x, x])": "np.concatenate",
    "np.zeros(2, 3)": "np.zeros((2, 3))",
    "torch.zeros(2)": "write np",
    "math.sqrt(2)": "np.sqrt",
    "x.reshape(24 / 4, 4)": "M // H",
    "np.einsum('...tm,...tn->mn', x, x)": "x.reshape(-1, x.shape[-1])",
    "t, m = x.shape": "*batch, t, m = x.shape",
    "x @ x": "k is 4 on the left and 3 on the right",
    "np.dot(x[0], x[0])": f"np.dot multiplies {DOT}: k is 4 on the left and 3 on the right",
    "np.dot(x, np.ones((5, 6)))": f"np.dot multiplies {DOT}: k is 4 on the left and 5 on the right",
    "np.dot(np.ones((2,3,4))[0, 0], np.ones(5))": f"np.dot multiplies {DOT}: k is 4 on the left and 5 on the right",
    "x.dot(np.ones(5))": f"np.dot multiplies {DOT}: k is 4 on the left and 5 on the right",
    "x[0].dot(x)": f"np.dot multiplies {DOT}: k is 4 on the left and 3 on the right",
    "np.inner(x[0], x[0].T)": "np.inner multiplies (…, n, k) by (…, m, k): k is 4 on the left and 3 on the right",
    "np.inner(x, x[0].T)": "np.inner multiplies (…, n, k) by (…, m, k): k is 4 on the left and 3 on the right",
    "np.dot(x, x)": "all pairs of matrices; write a @ b",
    "x.dot(x)": "all pairs of matrices; write a @ b",
    "np.inner(x, x.mT)": "a @ b.mT for np.inner",
    "x + x.T": "x.swapaxes(-2, -1) swaps the last two",
    "x * x[0].T": "@ is the product of matrices",
    "np.split(x, 4)": "axis=-1) the columns",
    "x.reshape(5, 5)": "have to multiply to 24",
    "x[0][:] = x": "has the shape (2,3,4), its place (3,4)",
    "for k in range(x.size): x[k]": "np.ndindex(x.shape)",
    "x.shape[3]": "fewer axes than this line assumes",
    "x or 0": "x is None",
    "x[0, 0, 0].imag()": "x.imag, without ()",
    "2 * j": "1j is the imaginary unit",
    "x[0, 0, 0] = x[0, 0]": "is a sum, or an index, missing?",
    "f = lambda: f(); f()": "a list of what is left to do",
}


def message(code, names=None):
    names = names or {"np": np, "x": np.ones((2, 3, 4))}
    linecache.cache["habit.py"] = len(code), None, [code], "habit.py"
    with pytest.raises(Exception) as failure:  # noqa: PT011  each has its own
        exec(compile(code, "habit.py", "exec"), names)
    return error_with_line(failure.value, "habit.py")


@pytest.mark.parametrize(("code", "words"), HABITS.items())
def test_a_PyTorch_habit_is_answered_with_the_NumPy_equivalent(code, words):
    text = message(code)
    assert words in " ".join(text.partition("  in NumPy ")[2].split()), text


def deprecated(*_):
    """In place of a product of arrays with more than two axes, as NumPy may deprecate it."""
    warnings.warn("dot with more than two dimensions is deprecated", DeprecationWarning, 2)


class FutureArray(np.ndarray):
    dot = deprecated


@pytest.mark.parametrize("code", ["np.dot(x, x.mT)", "np.inner(x, x)", "x.dot(x.mT)"])
def test_a_product_that_numpy_deprecates_is_answered_with_the_one_to_write(code):
    """The warning is an error where warnings are; https://github.com/numpy/numpy/issues/31725."""
    future = SimpleNamespace(dot=deprecated, inner=deprecated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = message(code, {"np": future, "x": np.ones((2, 3, 4)).view(FutureArray)})
    assert "all pairs of matrices; write a @ b" in " ".join(text.split()), text


def test_a_deprecated_argument_of_a_product_is_not_about_pairs():
    def dot(*_):
        raise DeprecationWarning("the argument out of dot is deprecated")

    text = message("np.dot(x, x.mT, x)", {"np": SimpleNamespace(dot=dot), "x": np.ones((2, 3, 4))})
    assert "in NumPy" not in text


def test_other_warnings_get_no_explanation():
    assert "in NumPy" not in message("raise RuntimeWarning('overflow encountered in dot')")
    assert "in NumPy" not in message("raise DeprecationWarning('np.fix is deprecated')")
    for text in ("the inner loop of np.nanmean is old", "the dot in '.real' is deprecated"):
        assert "in NumPy" not in message(f"raise DeprecationWarning({text!r})")


def test_only_the_beginning_of_a_long_error_is_searched():
    error = ValueError("maximum recursion depth")
    assert "in NumPy" in error_with_line(error, None)
    error.args = ("-" * 1000 + error.args[0],)
    assert "in NumPy" not in error_with_line(error, None)


@pytest.mark.parametrize("code", ["x.relu()", "1 / 0", "x.transpose(2, 1, 0) + x", "x[7]"])
def test_other_errors_get_no_explanation(code):
    assert "in NumPy" not in message(code)

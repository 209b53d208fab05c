"""Facts that chapters 01 and 02 and the page on the engine state and do not show."""

import ast
import itertools
import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minimha as mh

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "autograd" / "minimha_autograd"
PAGE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")


def cells(chapter):
    (path,) = ROOT.glob(f"notebooks/source/{chapter}_*.md")
    return re.findall(r"^```\{code-cell\}\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)


def test_flip_is_a_view_in_numpy_and_a_copy_in_torch():
    """The array standard leaves open which operations return views."""
    torch = pytest.importorskip("torch")
    x, t = np.arange(3.0), torch.arange(3.0)
    assert np.shares_memory(x, np.flip(x))
    torch.flip(t, (0,))[0] = 9.0
    assert t.tolist() == x.tolist()


def test_a_new_array_may_keep_the_order_of_the_array_it_came_from():
    x = np.array([[0, 1, 2], [3, 4, 5]])
    assert x.flags.c_contiguous
    assert not (x.T + 1).flags.c_contiguous  # its first index changes fastest


def test_array_api_strict_returns_views_where_numpy_does():
    xp = pytest.importorskip("array_api_strict")
    x = xp.arange(3)
    xp.flip(x)[0] = 9
    assert int(x[2]) == 9


def test_tensors_of_torch_have_no_namespace_and_some_functions_no_standard_name():
    torch = pytest.importorskip("torch")
    assert not hasattr(torch.ones(1), "__array_namespace__")
    assert not hasattr(torch, "permute_dims")
    assert not hasattr(torch, "astype")


def test_numpy_does_without_complaint_what_array_api_strict_refuses():
    (cell,) = (cell for cell in cells("01") if "xp = array_api_strict" in cell)
    cell = cell.replace("xp = array_api_strict", "xp = np")
    cell = cell.replace("except Exception", "except ZeroDivisionError")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(cell, {"np": np})


def test_the_engine_of_the_chapter_has_at_most_40_lines():
    (engine,) = (cell for cell in cells("02") if cell.startswith("clock = "))
    assert 30 <= len(engine.splitlines()) <= 40
    assert {node.name for node in ast.parse(engine).body if hasattr(node, "name")} == {
        "Node", "Variable", "lift",
    }  # fmt: skip


def test_python_allows_a_thousand_nested_calls():
    code = "import sys; print(sys.getrecursionlimit())"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert int(shown) == 1000


def test_each_file_of_the_engine_builds_on_those_before_it():
    table = PAGE.partition("## The files")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", table, re.MULTILINE)
    files = {path.stem for path in ENGINE.iterdir()} - {"__init__", "py", "__pycache__"}
    differ = sorted(files ^ {*listed})
    assert not differ, (
        f"the table of files in docs/engine.md and autograd/minimha_autograd/ differ in {differ}"
    )
    for k, name in enumerate(listed):
        paths = (
            [ENGINE / f"{name}.py"]
            if (ENGINE / f"{name}.py").exists()
            else (ENGINE / name).glob("*.py")
        )
        for path in paths:
            level = 1 if path.parent == ENGINE else 2
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.level == level:
                    used = (
                        [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
                    )
                    below = {*used} - {*listed[:k]}
                    assert not below, (
                        f"{path.relative_to(ROOT)} imports {below}, which docs/engine.md lists below it"
                    )


def test_the_page_lists_every_operation_of_the_engine():
    table = PAGE.partition("## Operations")[2].partition("\n## ")[0]
    listed = set(re.findall(r"\b[a-z]\w*\b", " ".join(re.findall(r"`([^`]*)`", table))))
    missing = {*mh.ops.__all__} - listed - {"getitem"}  # x[…]
    assert not missing, (
        f"add {', '.join(sorted(missing))} to the table of operations in docs/engine.md"
    )


def test_einsum_alone_takes_a_setting_before_its_arrays():
    first = {
        name: next(iter(getattr(mh.ops, name).__signature__.parameters)) for name in mh.ops.__all__
    }
    assert [name for name, x in first.items() if x == "subscripts"] == ["einsum"]
    assert {*first.values()} <= {"x", "a", "arrays", "condition", "subscripts"}


def test_integers_beside_floats_are_converted_if_the_floats_stay_as_they_are():
    x = mh.Tensor(np.ones(3, "float32"), requires_grad=True)
    assert (x + np.arange(3, dtype="int8")).dtype == "float32"
    assert (np.float64(2) * x).dtype == "float32"
    with pytest.raises(TypeError, match="float32 went in and float64 came out"):
        x + np.arange(3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_real_number_does_not_change_a_dtype_of_floats(dtype):
    x = mh.Tensor(np.ones(3, dtype))
    scalars = [
        getattr(np, name)(1) for name in ("bool", "int8", "int64", "uint64", "float16", "float64")
    ]
    for number in (True, 2, 2.5, 2**70 if dtype != "float16" else 2, *scalars):
        assert (number * x).dtype == (x + number).dtype == mh.ops.maximum(x, number).dtype == dtype


def test_new_data_of_another_shape_invalidate_the_graphs_of_a_leaf_with_a_gradient_only():
    x = mh.Tensor(np.ones(3), requires_grad=True)
    constant = mh.Tensor(np.full(3, 2.0))
    y = (x * constant).sum()
    constant.data = np.ones(4)
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [2, 2, 2]
    x.data = np.ones(4)
    with pytest.raises(RuntimeError, match="no longer exists"):
        y.backward()


def test_an_index_may_be_an_array_of_another_library():
    torch = pytest.importorskip("torch")
    x = mh.Tensor(torch.arange(3.0), requires_grad=True)
    assert x[np.array([2, 0])].data.tolist() == [2, 0]


def test_a_missing_gradient_in_proportion_to_the_rest_looks_like_a_factor():
    def thrice(x):  # h * 2 + h, with the gradient of one use
        return 3 * x, lambda dy: (2 * dy,)

    with pytest.raises(mh.GradcheckError, match=r"ratio +0\.6666666667, the same in every entry"):
        mh.gradcheck(thrice, np.arange(1.0, 4.0))


def test_operations_refuse_arrays_of_different_float_types():
    pairs = itertools.permutations(("float16", "float32", "float64"), 2)
    of_two = [mh.ops.add, mh.ops.multiply, mh.ops.matmul, mh.ops.maximum, mh.ops.outer, joined]
    for (a, b), operation in itertools.product(pairs, of_two):
        x, y = (mh.Tensor(np.ones(3, dtype), requires_grad=True) for dtype in (a, b))
        with pytest.raises(TypeError, match="converted silently"):
            operation(x, y)


def joined(x, y):
    return mh.ops.concat([x, y])


def test_a_block_in_a_generator_of_torch_stays_open_for_the_caller():
    torch = pytest.importorskip("torch")

    def numbers():
        with torch.no_grad():
            yield 1

    generator = numbers()
    assert torch.is_grad_enabled()
    next(generator)
    assert not torch.is_grad_enabled()
    generator.close()
    assert torch.is_grad_enabled()


def test_the_bits_of_16_bit_floats():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert np.finfo("float16").nmant + 1 == 11
    assert float(np.finfo("float16").max) == 65504
    bfloat16 = ml_dtypes.finfo("bfloat16")
    assert bfloat16.nmant + 1 == 8
    for dtype, last in (("float16", 2048), (ml_dtypes.bfloat16, 256)):
        total, one = np.zeros((), dtype), np.ones((), dtype)
        for _ in range(last + 5):
            total = (total + one).astype(dtype)
        assert float(total) == last
    assert np.float16(2**-25) == 0 < np.float16(2.99e-8)  # and so a little below 3e-8


def test_a_scaled_loss_in_float16_needs_a_smaller_learning_rate_and_not_a_divided_gradient():
    def moved(optimiser, divide=1, **settings):
        w = mh.Tensor(np.ones(3, "float16"), requires_grad=True)
        step = optimiser([w], **settings)
        (1024.0 * (w * 2.0**-26).sum()).backward()
        w.grad = w.grad / divide
        step.step()
        return 1 - w.data[0]

    assert moved(mh.nn.SGD, divide=1024, lr=1e5) == 0
    assert moved(mh.nn.SGD, lr=1e5 / 1024) > 0.001
    assert moved(mh.nn.Adam, lr=0.1) > 0.09


def test_half_precision_beside_integers_counts_as_float32():
    x = mh.Tensor(np.ones(3, "float16"))
    assert (x * np.ones(3, "int16")).data.dtype == "float16"
    with pytest.raises(TypeError):
        x * np.ones(3, "int32")


def test_a_leaf_to_which_the_tape_leads_may_receive_no_gradient():
    leaf = partial(mh.Tensor, np.ones((2, 3)), requires_grad=True)
    query, key, value = leaf(), leaf(), leaf()
    _, lse = mh.scaled_dot_product_attention(query, key, value, return_lse=True)
    lse.sum().backward()
    assert key.grad is not None
    assert value.grad is None

"""Broken kernels are found on NumPy's stand-in: by a wrong result, or by an error of the stand-in."""

import ast
import functools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from attention_paths import computed

from minimha import masks
from minimha.attention import Arguments, attention_steps, scaled_dot_product_attention
from minimha.functional.dropout import Draw
from minimha.kernels.gpu import numpy_tile, tiled

SOURCE = Path(tiled.__file__).with_name("tiles.py")
CHAPTER = Path(__file__).parents[4] / "notebooks" / "source" / "12_gpu.md"
TILE = 16, 16


class Broken(NamedTuple):
    """A mistake in the kernels: text of `tiles.py`, and what replaces its nth occurrence."""

    name: str
    old: str
    new: str
    nth: int = 0

    def source(self):
        parts = SOURCE.read_text(encoding="utf-8").split(self.old)
        assert len(parts) > self.nth + 1, f"tiles.py no longer contains {self.old!r}"
        before, after = parts[: self.nth + 1], parts[self.nth + 1 :]
        return self.old.join(before) + self.new + self.old.join(after)


BROKEN = [
    # online softmax
    Broken("values not rescaled", "acc * shrink", "acc"),
    Broken("sum not rescaled", "total * shrink", "total"),
    Broken("maximum not kept", "return new, p, shrink", "return peak, p, shrink"),
    Broken("maximum of an empty row subtracted", "ct.where(new == -math.inf, 0.0, new)", "new"),
    Broken("sum not divided by", "acc / ct.where(empty, 1.0, total)", "acc"),
    Broken("empty row divided by zero", "ct.where(empty, 1.0, total)", "total"),
    Broken("lse in base 2", "peak * LN_2", "peak"),
    Broken("lse of an empty row is 0", "ct.where(empty, math.inf, ", "ct.where(empty, 0.0, "),
    Broken("no sink", "if sunk:", "if False:"),
    Broken("sink in base e", "score.astype(dtype) * LOG2_E", "score.astype(dtype)"),
    # which tiles
    Broken("first tile of keys left out", "begin, S)) // N", "begin, S)) // N + 1"),
    Broken("last tile of keys left out", "ct.cdiv(ct.max(ct.where(sees, end, 0)), N)", "ct.max(ct.where(sees, end, 0)) // N"),
    Broken("a tile of keys too many", "ct.where(sees, end, 0)), N)", "ct.where(sees, end, 0)), N) + 1"),
    Broken("the middle begins too early", "middle = ct.cdiv(ct.max(begin), N)", "middle = ct.max(begin) // N"),
    Broken("the middle ends too late", "end, S)) // N", "end, S)) // N + 1"),
    Broken("the middle as the farthest query sees it", "after = ct.min(ct.where(position < T", "after = ct.max(ct.where(position < T"),
    Broken("a middle beside a mask", "        middle = stop\n", "        pass\n"),
    Broken("edges without a jump", " + (n >= tiles.middle - tiles.first) * (tiles.after - tiles.middle)", ""),
    Broken("edges jump too late", "(n >= tiles.middle - tiles.first)", "(n > tiles.middle - tiles.first)"),
    Broken("edges alone", "ct.static_iter(edges_then_middle(only_edges))", "(True,)"),
    Broken("the middle alone", "ct.static_iter(edges_then_middle(only_edges))", "(False,)"),
    Broken("edges alone in dk", "ct.static_iter(edges_then_middle(only_edges))", "(True,)", 2),
    Broken("first tile of queries left out", "seeing, (b, h, j, 0), one).item()", "seeing, (b, h, j, 0), one).item() + 1"),
    Broken("last tile of queries left out", "seeing, (b, h, j, 3), one).item()", "seeing, (b, h, j, 3), one).item() - 1"),
    Broken("the tiles of another head", "seeing, (b, h, j, 3)", "seeing, (b, 0, j, 3)"),
    # which pairs
    Broken("edges hide nothing", "scores = ct.where(seen, scores, -math.inf)", "pass"),
    Broken("the same in dq", "ds = ct.where(seen, ds, 0.0)", "pass"),
    Broken("the same in dk", "ds = ct.where(seen, ds, 0.0)", "pass", 1),
    Broken("the same in dv", "weights = ct.where(seen, weights + nan_row, 0.0)", "pass"),
    Broken("one key too many", "(key < end)", "(key <= end)"),
    Broken("one key too few", "(begin <= key)", "(begin < key)"),
    Broken("keys counted from the tile's start", "of_keys(positions(pairs.keys), pairs)", "of_keys(ct.arange(pairs.keys.size, dtype=ct.int32), pairs)"),
    Broken("mask not applied", "if masked:", "if False:"),
    Broken("query head h reads key head h mod G", "h // (q.shape[1] // k.shape[1])", "h % k.shape[1]"),
    Broken("heads of a group left out", "(g + 1) * group", "g * group + 1"),
    # formulas
    Broken("bias in base e", "added * LOG2_E", "added"),
    Broken("no softcap", "if softcap > 0:", "if False:"),
    Broken("softcap has slope 1", "1.0 - bend * bend", "1.0"),
    Broken("dq without scale", "acc * scale)", "acc)"),
    Broken("dk without scale", "dkey * scale)", "dkey)"),
    Broken("dbias with the slope of the softcap", "store_entries(dbias, pairs, dcapped)", "store_entries(dbias, pairs, ds)"),
    Broken("delta not subtracted", "(dp - delta_i)", "dp"),
    Broken("delta not subtracted in dk", "(dp - delta_i) * p * slope", "dp * p * slope"),
    Broken("dlse left out", "if has_dlse:", "if False:"),
    Broken("dlse added", "delta_i = delta_i - numbers", "delta_i = delta_i + numbers"),
    Broken("kept weights not enlarged", "p * kept_factor", "p"),
    Broken("dropout before the sum", "total * shrink + ct.sum(p", "total * shrink + ct.sum(p * kept_factor"),
    Broken("dout not dropped", "dp = ct.where(keeps, dp * kept_factor, 0.0)", "pass", 1),
    Broken("dv of the weights before dropout", "weights = ct.where(keeps, p * kept_factor, 0.0)", "pass"),
    Broken("transposed tile read as it is", ", order=(0, 1, 3, 2)", "", 1),
    # dropout by a counter
    Broken("one draw for all heads", "pairs.queries.b * heads + pairs.queries.h", "pairs.queries.b"),
    Broken("one draw for all tiles of queries", "query = positions(pairs.queries).astype", "query = ct.arange(pairs.queries.size, dtype=ct.int32).astype"),
    Broken("a query's number in the place of a key's", "query = positions(pairs.queries).astype", "query = positions(pairs.keys).astype"),
    Broken("seed not used", "mix(seed.reshape((1, 1)) + head)", "mix(head)"),
    # NaN in hidden keys, values and queries
    Broken("hidden NaN value", "value = finite(value)", "pass"),
    Broken("visible NaN value lost", "acc = ct.where(nonfinite, math.nan, acc)", "pass"),
    Broken("hidden NaN value reaches all", "ct.where(seen, 1.0, 0.0)", "ct.full(seen.shape, 1.0, dtype)"),
    Broken("hidden NaN key", "key = finite(key)", "pass"),
    Broken("hidden NaN key by the slope of the softcap", "ds = ct.where(seen, ds, 0.0)", "ds = dcapped * slope"),
    Broken("hidden NaN query", "query = finite(query)", "pass"),
    Broken("hidden NaN dout", "dresult = finite(dresult)", "pass"),
    Broken("NaN dout of a query without keys reaches the sink", "weighted = ct.where(result == 0.0, 0.0, weighted)", "pass"),
    Broken("visible NaN dout lost", "weights + nan_row", "weights"),
]  # fmt: skip
UNDEFINED_ON_A_GPU = [
    Broken("beyond the edge undetermined", ", padding_mode=ZERO", ""),
    Broken("the same for columns", ", padding_mode=ZERO", "", 1),
    Broken("two blocks store one tile", "ct.store(x, (span.b, span.h, span.i, 0)", "ct.store(x, (span.b, span.h, 0, 0)"),
    Broken("two heads store one tile", "store_numbers(lse, queries, log_sum)", "store_numbers(lse, Span(b, g, i, M), log_sum)"),
    Broken("stored in each step", "            total = total * shrink", "            store_numbers(lse, queries, peak)\n            total = total * shrink"),
    Broken("reads what another block stores", "log2_sum = numbers(lse, ", "log2_sum = numbers(delta, Span(b, h, 0, M), (M, 1)) + numbers(lse, "),
    Broken("writes what another block reads", "    empty = total == 0.0\n", "    store_rows(q, queries, query)\n    empty = total == 0.0 * ct.load(q, (b, h, 0, 0), (1, 1, 1, 1)).reshape((1, 1))\n"),
    Broken("sizes that are no power of 2", "ct.arange(span.size, ", "ct.arange(span.size + 1, "),
    Broken("product of different dtypes", "p.astype(v.dtype)", "p"),
    Broken("stored in another dtype", "    tile = tile.astype(x.dtype)\n", ""),
    Broken("a tile changed in place", "    empty = total == 0.0\n", "    total[0] = 1.0\n    empty = total == 0.0\n"),
]  # fmt: skip


@pytest.mark.parametrize("broken", [*BROKEN, *UNDEFINED_ON_A_GPU], ids=lambda broken: broken.name)
def test_every_mistake_is_an_edit_of_the_kernels(broken):
    """Most mistakes run with --thorough only."""
    assert broken.source() != SOURCE.read_text(encoding="utf-8")


class Case(NamedTuple):
    """A call of attention, and the gradients of its output and, if any, of its lse."""

    x: Arguments
    dout: np.ndarray
    dlse: np.ndarray | None


def drawn(seed, t, s, heads, dtype="float64", *, lse=False, **more):
    rng = np.random.default_rng(seed)
    h, g = heads
    shapes = (1, h, t, 5), (1, g, s, 5), (1, g, s, 3), (1, h, t, 3)
    *inputs, dout = (rng.standard_normal(x).astype(dtype) for x in shapes)
    return Case(Arguments(*inputs, **more), dout, rng.standard_normal((1, h, t)) if lse else None)


@functools.cache
def cases():
    """Few and small, but of several tiles, with every option."""
    rng = np.random.default_rng(1)
    dense = rng.random((20, 35)) < 0.6
    dense[3], dense[17] = False, False
    options = {"bias": rng.standard_normal((1, 4, 20, 35)), "sink": rng.standard_normal((1, 4))}
    of_head = np.arange(80) >= 20 * np.array([3, 2, 1, 0])[:, None, None]  # each sees other keys
    with_options = drawn(
        4, 20, 35, (4, 2), **options, softcap=1.5, mask=masks.dense(dense),
        keep=rng.random((20, 35)) < 0.6, p=0.4,
    )  # fmt: skip
    dout_of_an_empty_row = with_options.dout.copy()
    dout_of_an_empty_row[..., 3, :] = math.nan
    with_a_gap = np.broadcast_to(of_head, (4, 30, 80)) & (np.arange(80) != 70)
    return [
        drawn(2, 35, 20, (4, 2), lse=True),
        drawn(3, 37, 40, (4, 2), mask=masks.sliding_window(9, 3, offset=12)),
        drawn(9, 70, 90, (1, 1), mask=masks.sliding_window(40, 5, offset=30)),
        drawn(10, 30, 80, (4, 2), mask=masks.dense(with_a_gap[None])),
        with_options,
        with_options._replace(dout=dout_of_an_empty_row),
        drawn(5, 5, 3, (1, 1), "float16"),
        drawn(8, 40, 20, (4, 2), keep=Draw(7, 0.4), p=0.4),
        drawn(6, 20, 20, (1, 1), mask=masks.causal(offset=-3)),
        *with_nan(drawn(7, 20, 20, (1, 1), mask=masks.causal(offset=0), softcap=1.5)),
    ]  # fmt: skip


def with_nan(case):
    """In each array in turn, a row that some queries or keys may not see is NaN."""
    for name in ("query", "key", "value", "dout"):
        a = (case.dout if name == "dout" else getattr(case.x, name)).copy()
        a[..., 5, :] = math.nan
        if name == "dout":
            yield case._replace(dout=a)
        else:
            yield case._replace(x=case.x._replace(**{name: a}))


@functools.cache
def expected(n):
    """out, lse and the gradients of a case, by the reference in float64."""
    x, dout, dlse = cases()[n]
    q, k, v, bias, sink, _, softcap = wide = [
        a.astype("float64") if isinstance(a, np.ndarray) else a for a in x.inputs
    ]
    with np.errstate(all="ignore"):
        values, pull = computed(
            "reference", *wide, mask=x.mask, keep=x.resolved_keep(), p=x.p,
            return_lse=dlse is not None,
        )  # fmt: skip
        scores = attention_steps(q, k, v, x.mask, bias=bias, sink=sink, softcap=softcap).scores
        lse = np.logaddexp.reduce(scores, axis=-1)
        lse = lse if sink is None else np.logaddexp(lse, sink[..., None])
    lse = np.where(lse == -math.inf, math.inf, lse)
    if dlse is None:
        return values, lse, *pull(dout.astype("float64"))
    return values[0], lse, *pull(dout.astype("float64"), dlse)


def is_right(kernels, n):
    """Whether these kernels give the results of the reference in a case."""
    x, dout, dlse = cases()[n]
    target = tiled.Runner(kernels, numpy_tile.launch, None)
    laid_out = tiled.TileArguments.of(x)
    wanted = scaled_dot_product_attention.wanted(
        query=True, key=True, value=True, bias=x.bias is not None, sink=x.sink is not None
    )
    out, lse = tiled.forward(laid_out, target)
    gradients = tiled.backward(laid_out, out, lse, dout, dlse, wanted, target)
    bar = 1e-12 if out.dtype == "float64" else 4e-3
    return all(
        a is None or np.allclose(a, b, rtol=bar, atol=bar, equal_nan=True)
        for a, b in zip((out, lse, *gradients), expected(n), strict=True)
    )


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "tile_sizes", lambda *_: TILE)


def test_the_kernels_are_right_in_every_case():
    kernels = numpy_tile.interpreted(SOURCE)
    assert all(is_right(kernels, n) for n in range(len(cases())))


@pytest.mark.parametrize(
    "broken",
    [
        *(pytest.param(broken, id=broken.name) for broken in UNDEFINED_ON_A_GPU),
        *(pytest.param(broken, id=broken.name, marks=pytest.mark.thorough) for broken in BROKEN),
    ],
)
def test_a_broken_kernel_is_found(broken, tmp_path):
    path = tmp_path / "tiles.py"
    path.write_text(broken.source(), encoding="utf-8")
    kernels = numpy_tile.interpreted(path)

    def is_found(n):
        try:
            return not is_right(kernels, n)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return True

    assert any(map(is_found, range(len(cases()))))


def test_the_mistakes_that_chapter_12_makes_fit_the_kernels():
    chapter = CHAPTER.read_text(encoding="utf-8")
    _, _, text = chapter.partition("\nmistakes = ")
    mistakes = ast.literal_eval(text[: text.index("\n}\n") + 2])
    kernels = SOURCE.read_text(encoding="utf-8")
    unfit = [name for name, (old, _) in mistakes.items() if old not in kernels]
    assert not unfit, f"{CHAPTER.name} edits text that {SOURCE.name} no longer contains: {unfit}"

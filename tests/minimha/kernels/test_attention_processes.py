"""Kernels of attention in separate processes: array bounds are checked, and memory is measured.

Where only indices are at stake, the compiler does not optimise, which takes half the time.
"""

import pathlib
import sys

import pytest
from processes import output_of

pytest.importorskip("numba")
HERE = pathlib.Path(__file__).parent
CASES = (
    f"import sys\nsys.path[:0] = {[str(HERE), str(HERE.parents[1])]}"
    + """
import numpy as np
from attention_paths import Case
from test_attention_kernels import masks, same, small_tiles, threads, ways
ways.attention = None  # the reference cannot help
rng = np.random.default_rng(4)

def normal(*shape):
    return rng.standard_normal(shape).astype("float32")

def check(name, t, s, d, dv):
    h, g = 4, 2
    mask = masks.causal(align="bottom-right") & masks.keys(rng.random((1, s)) < 0.8)
    more = {"mask": mask, "bias": normal(h, 1, s), "scale": 0.4}
    if name != "fused":
        keep = rng.random((t, s)) < 0.6
        more |= {"sink": normal(h), "softcap": 3.0, "keep": keep, "dropout": 0.4}
    inputs = normal(1, h, t, d), normal(1, g, s, d), normal(1, g, s, dv), normal(1, h, t, dv)
    with small_tiles(), threads.limit(2), np.errstate(all="ignore"):
        same(name, Case(*inputs, np.zeros(0), **more))
"""
)

PRODUCTS = """
from minimha.kernels.cpu import linear
for m, k, n in ((1, 1, 1), (25, 7, 3), (49, 300, 70)):
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(shape) for shape in ((m, k), (k, n), n))
    for x, y in ((a, b), (a.T.copy().T, b.T.copy().T)):
        sums = np.zeros(n)
        c = linear.product(x, y, bias=bias, sums=sums)
        assert np.abs(c - a @ b - bias).max() < 1e-12, (m, k, n)
        assert np.abs(sums - b.sum(axis=0)).max() < 1e-12
"""


@pytest.mark.thorough
def test_no_kernel_reads_or_writes_past_the_end_of_an_array():
    """Products in registers use plain memory; the compiler checks the bounds of the other code."""
    code = CASES + PRODUCTS
    code += (
        "for name in ('fused', 'tiled', 'microkernel'):\n"
        "    for t, s, d, dv in [(1, 1, 1, 1), (7, 13, 3, 5), (100, 205, 17, 3), (200, 96, 8, 33)]:\n"
        "        check(name, t, s, d, dv)\n"
        "import numba; print(numba.config.BOUNDSCHECK)"
    )
    assert output_of(code, NUMBA_BOUNDSCHECK="1", NUMBA_OPT="0") == "1\n"


ANOTHER_CPU = """
import sys
from numba.core import codegen
features = codegen.get_host_cpu_features
codegen.get_host_cpu_features = lambda: ",".join("+" + name for name in sys.argv[1:])
from minimha.kernels.cpu import registers
codegen.get_host_cpu_features = features
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cpu", "expected"),
    [("avx2 fma", "32 6 True\n"), ("neon", "16 12 True\n"), ("", "16 6 False\n")],
)
def test_block_sizes_of_other_cpus_give_the_same_results(cpu, expected, tmp_path):
    """LLVM maps their vectors to this CPU's: only the blocks have the other size."""
    from minimha.kernels.cpu import registers

    if expected.startswith(f"{registers.BYTES} {registers.ROWS} "):
        pytest.skip("these are this CPU's own, which all other tests use")
    code = ANOTHER_CPU + CASES + PRODUCTS
    code += "check('microkernel', 100, 205, 17, 3)\n"
    code += "print(registers.BYTES, registers.ROWS, registers.no_vectors() is None)"
    settings = {"MINIMHA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"}
    assert output_of(code, *cpu.split(), **settings) == expected


MEMORY = """
import numpy as np, minimha as mh
T, D = 4096, 64

def peak():
    # ru_maxrss begins with the largest size of the process that started this one
    line = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))
    return 1024 * int(line.split()[1])

def work(name, t):
    x = [np.ones((1, 2, t, D), "float32") for _ in "qkvo"]
    out, pull = mh.scaled_dot_product_attention.with_pullback(
        *x[:3], mh.masks.causal(), implementation=name
    )
    pull(x[3])

for name in ("tiled", "microkernel", "fused"):
    work(name, 1024)
    before = peak()
    work(name, T)
    print((peak() - before) / (T * T * 4))
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other ways elsewhere")
def test_no_array_of_all_query_key_pairs_is_allocated():
    """A sixteenth of the scores of a head would be much more than inputs, results and gradients."""
    tiled, microkernel, fused = map(float, output_of(MEMORY, MINIMHA_NUM_THREADS="2").split())
    assert fused > 2
    assert max(tiled, microkernel) < 0.6

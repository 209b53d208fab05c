"""Blocks of products fit the registers of the CPU that Numba compiles for, not those of this CPU."""

import json
import os
import platform
import re
import subprocess
import sys

import pytest

pytest.importorskip("numba")

PROGRAM = """
import json, re
import numpy as np
from minimha.kernels.cpu import linear, registers

@linear.kernel(cache=False)
def block(a, b, c):
    width = b.shape[1]
    linear.multiply_block(a, 0, 64, 1, b, 0, width, 64, c, 0, width, False, None)

x = np.ones((registers.ROWS, 64), "float32")
y = np.ones((64, 64), "float32")
block(x, y, np.empty_like(x))
(code,) = block.inspect_asm().values()
products = re.findall(r".*fmadd.*", code) or [code]  # without the instruction: calls of fmaf
names = sorted(set(re.findall(r"%([xyz]mm)", "".join(products))))
print(json.dumps([registers.BYTES, bool(linear.no_vectors()), names]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "AMD64"}, reason="names of x86's registers"
)
@pytest.mark.parametrize("settings", [
    {}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_ENABLE_AVX": "0"},
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"},
], ids=str)  # fmt: skip
def test_blocks_are_made_for_the_cpu_that_numba_compiles_for(settings, tmp_path):
    if "+avx2" in str(settings):
        features = subprocess.run(
            [sys.executable, "-c", "from llvmlite import binding as b; print(b.get_host_cpu_features())"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        if not re.search("'avx2': True", features):
            pytest.skip("this CPU has no AVX2")
    names = "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX"
    here = {k: v for k, v in os.environ.items() if k not in names}
    here |= {"MINIMHA_CACHE_DIR": str(tmp_path)} | settings
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=here, capture_output=True, text=True, check=True
    )
    width, slow, registers = json.loads(done.stdout)
    assert registers[-1:] == [{16: "xmm", 32: "ymm", 64: "zmm"}[width]]
    assert slow == (width == 16)

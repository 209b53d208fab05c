"""The kernels for GPUs compile where there is no GPU."""

import importlib.util
import os
import random
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from itertools import combinations
from pathlib import Path

import compiled_for_gpu as compiled
import pytest

from minimha.kernels.gpu import cuda, fused, tiled

pytestmark = pytest.mark.thorough
SOURCE = cuda.text(fused.SOURCE)
SOURCES = sorted(cuda.COMMON.parent.glob("*.cu"))


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.core")
    return compiled.nvrtc


@pytest.fixture
def tiles():
    """cuTile and its compiler."""
    pytest.importorskip("cuda.tile")
    pytest.importorskip("ml_dtypes")
    try:
        compiled.nvidia("tileiras")
        compiled.nvidia("cuobjdump")
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("real", cuda.REALS.values())
@pytest.mark.parametrize("architecture", compiled.ARCHITECTURES)
def test_cuda_compiles_to_machine_code_without_a_warning(nvrtc, source, architecture, real):
    text = cuda.text(source)
    code = nvrtc(text, architecture, real)
    assert code.startswith(b"\x7fELF")
    kernels = re.findall(r"__global__ void (\w+)", text)
    assert kernels
    assert all(kernel.encode() in code for kernel in kernels)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("over_block(total, sum)", "over_block(total, summ)", 'identifier "summ" is undefined'),
        ("real* dw =", "int* dw =", "cannot be used to initialize"),
        ("real peak =", "int unused; real peak =", "was declared but never referenced"),
    ],
)
def test_an_error_in_cuda_is_reported_by_its_line(nvrtc, old, new, message):
    assert old in SOURCE
    with pytest.raises(Exception, match=message):
        nvrtc(SOURCE.replace(old, new), "sm_75", "float")


TILES_FOR = compiled.ARCHITECTURES[1:]
COMMON = [
    (dtype, sizes, compiled.Options())
    for dtype in ("float16", "float32")
    for sizes in compiled.COMMON
]
"""The calls that a model makes. Those in bfloat16 are among `others`."""


@pytest.mark.parametrize("architecture", TILES_FOR)
@pytest.mark.parametrize(("dtype", "sizes", "options"), COMMON)
def test_tiles_of_common_calls_compile_to_machine_code(tiles, dtype, sizes, options, architecture):
    """On Hopper, for which their sizes were chosen, they spill almost no registers."""
    for signature in compiled.signatures(dtype, sizes, options, architecture):
        code = compiled.machine_code(compiled.bytecode(signature), architecture)
        assert code.startswith(b"\x7fELF")
        if architecture == "sm_90":
            _, spilled = compiled.registers_and_spills(code)
            assert spilled <= 100, signature.kernel


def with_every_pair(calls):
    """Calls in random order that between them have every pair of dtype, sizes and options."""
    seen = set()
    for dtype, sizes, options in random.Random(0).sample(calls, len(calls)):
        pairs = {*combinations(enumerate((dtype, sizes, *options)), 2)}
        if not pairs <= seen:
            seen |= pairs
            yield dtype, sizes, options


def others():
    """One kernel of each of these calls, for one GPU. `benchmarks/registers.py --all` compiles all
    kernels of all calls for all GPUs, which takes hours."""
    calls = list(with_every_pair(list(compiled.calls())))
    for number, call in enumerate(calls):
        yield *call, number // 3 % 3, TILES_FOR[number % 3]


@pytest.mark.parametrize(("dtype", "sizes", "options", "kernel", "architecture"), list(others()))
def test_tiles_of_other_calls_compile_to_machine_code(
    tiles, dtype, sizes, options, kernel, architecture
):
    signature = compiled.signatures(dtype, sizes, options, architecture)[kernel]
    code = compiled.machine_code(compiled.bytecode(signature), architecture)
    assert code.startswith(b"\x7fELF")


@pytest.mark.parametrize(("k", "wrong"), [(1, "float32"), (3, "float32")])
def test_wrong_types_do_not_compile(tiles, k, wrong):
    """Keys whose dtype is not that of the queries, and intervals that are not integers."""
    import cuda.tile as ct

    signature = compiled.signatures(*COMMON[0])[0]
    parameters = list(signature.parameters)
    parameters[k] = parameters[k]._replace(dtype=wrong)
    with pytest.raises(ct.TileError):
        compiled.bytecode(signature._replace(parameters=tuple(parameters)))


@pytest.mark.parametrize(("warps", "registers", "spilled"), [(4, 168, 488), (8, 168, 56)])
def test_more_warps_share_a_tile_and_spill_less(
    tiles, monkeypatch, tmp_path, warps, registers, spilled
):
    """The forward in float16 with D = 64 and tiles of 128 × 128, as chapter 12 says."""
    text = Path(tiled.__file__).with_name("tiles.py").read_text(encoding="utf-8")
    path = tmp_path / "tiles_with_warps.py"
    path.write_text(text.replace("num_worker_warps=8", f"num_worker_warps={warps}"), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)

    importlib.import_module("minimha.kernels.gpu.tiles")
    monkeypatch.setattr("minimha.kernels.gpu.tiles", module)
    signature = compiled.signatures("float16", compiled.COMMON[0], compiled.Options())[0]
    assert signature.parameters[-4:] == (128, 128, 64, 64)
    found = compiled.registers_and_spills(
        compiled.machine_code(compiled.bytecode(signature), "sm_90")
    )
    if version("nvidia-cuda-tileiras").startswith("13.4."):
        assert found == (registers, spilled)
    elif warps == 8:
        assert found[1] <= 100


def test_a_compiler_that_crashes_is_an_error(tiles, monkeypatch):
    monkeypatch.setattr(compiled, "nvidia", lambda program: "false")
    with pytest.raises(RuntimeError, match="tileiras ends with 1"):
        compiled.machine_code(b"", "sm_90")


DRIVER = """
#include <cstring>
static int done() { return 0; }
static int version(int* number) { *number = 13000; return 0; }
extern "C" int cuGetProcAddress_v2(const char* name, void** found, int, unsigned long long, void*)
{
    *found = strstr(name, "DriverGetVersion") ? (void*)version : (void*)done;
    return 0;
}
"""
"""The part of a driver that cuTile needs before it inspects the arguments of a launch."""

LAUNCHED = """
import numpy as np
import cuda.tile as ct
from cuda.tile import compilation
import compiled_for_gpu as compiled


class Allocated:
    def __init__(self, x):
        self.__cuda_array_interface__ = {
            "shape": x.shape, "strides": x.strides, "typestr": x.dtype.str, "version": 3,
            "data": (2**30, False),
        }


@ct.kernel
def kernel(x):
    pass


convention = compilation.CallingConvention.cutile_python_v2()
zeros = np.zeros
for x in (
    zeros(200), zeros((3, 4), bool), zeros((3, 32), bool), zeros((1, 1, 1, 1), bool),
    zeros((2, 200, 4, 64), "f2").transpose(0, 2, 1, 3), zeros((4, 1, 7, 64), "f2"),
    zeros((3, 200, 5), "f4").transpose(1, 0, 2), zeros((2, 32, 48), "f2")[:, :, :16],
    np.broadcast_to(zeros(5, "f4"), (4, 5)), np.broadcast_to(zeros((1, 16), "f4"), (1, 1, 16)),
    np.broadcast_to(zeros((4, 1), bool), (4, 5)), zeros((5, 1), "f2"), zeros((2, 3, 40), "i4"),
):
    signature = compilation.KernelSignature.from_kernel_args(kernel, (Allocated(x),), convention)
    found, expected = compiled.ArrayType.of(x).constraint(), signature.parameters[0]
    assert found == expected, f"{found} for {expected}, {x.shape} {x.strides}"
"""


def test_the_assumptions_about_arrays_are_those_of_a_launch(tiles, tmp_path):
    """cuTile itself says what it would assume about arrays on a GPU; the driver is a stand-in."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    source = tmp_path / "driver.cpp"
    source.write_text(DRIVER, encoding="ascii")
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)
    tests = str(Path(compiled.__file__).parent)
    paths = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHED], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

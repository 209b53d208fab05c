"""The kernels for GPUs compile where there is no GPU."""

import random
import re
from itertools import combinations

import pytest

from minimha.kernels.gpu import compiled, cuda, fused

pytestmark = pytest.mark.thorough
SOURCE = cuda.text(fused.SOURCE)
SOURCES = sorted(cuda.COMMON.parent.glob("*.cu"))


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.core")
    return compiled.nvrtc


@pytest.fixture
def bytecode():
    pytest.importorskip("cuda.tile")
    pytest.importorskip("ml_dtypes")
    return compiled.bytecode


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


def with_every_three(signatures):
    """A third of the signatures, with every combination of three types or options."""
    seen = set()
    for signature in random.Random(0).sample(signatures, len(signatures)):
        threes = {*combinations(enumerate((*signature.arrays, *signature.constants)), 3)}
        if not threes <= seen:
            seen |= threes
            yield signature


@pytest.mark.parametrize("kernel", ["forward", "backward_query", "backward_key"])
def test_signatures_in_use_compile_to_bytecode(bytecode, kernel):
    signatures = [signature for signature in compiled.signatures() if signature.kernel == kernel]
    dtypes = {signature.arrays[0][0] for signature in signatures}
    assert dtypes == {"float16", "bfloat16", "float32", "float64"}
    for signature in with_every_three(signatures):
        assert bytecode(signature).startswith(b"\x7fTileIR")


@pytest.mark.parametrize(("k", "wrong"), [(1, ("float32", 4)), (3, ("int32", 4))])
def test_wrong_types_and_shapes_do_not_compile(bytecode, k, wrong):
    """Keys of another dtype than the queries; intervals with a number for each pair."""
    import cuda.tile as ct

    signature = next(compiled.signatures())
    arrays = list(signature.arrays)
    arrays[k] = wrong
    with pytest.raises(ct.TileError):
        bytecode(signature._replace(arrays=tuple(arrays)))

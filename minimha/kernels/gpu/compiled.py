"""Compile the kernels for a GPU on a machine that has none.

CUDA C++ is compiled to machine code, and tiles to bytecode, which checks all types.
`tests/minimha/kernels/gpu/test_compiled.py` compiles every source and every signature, and
`benchmarks/registers.py` turns the bytecode into machine code. This needs Linux and
`pip install "minimha[gpu-checks]"`.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minimha_autograd import backend

from ... import masks
from ...attention import Arguments
from ...functional.dropout import Draw
from . import tiled

ARCHITECTURES = "sm_75", "sm_80", "sm_90", "sm_100"
"""The GPUs that the CUDA C++ is compiled for: Turing (T4), Ampere (A100), Hopper, Blackwell."""


def nvrtc(source: str, architecture: str, real: str) -> bytes:
    """The machine code of a source in CUDA C++, where `real` stands for a type. Raises cuda.core's
    error with the compiler's messages, and SyntaxError with its warnings."""
    from cuda.core import Program, ProgramOptions

    messages = io.StringIO()
    options = ProgramOptions(arch=architecture, define_macro=("real", real))
    code = Program(source, "c++", options).compile("cubin", logs=messages).code
    if messages.getvalue():
        raise SyntaxError(messages.getvalue())
    return bytes(code)


class KernelTypes(NamedTuple):
    """The types with which a kernel of `tiles` is compiled."""

    kernel: str
    arrays: tuple[tuple[str, int], ...]  # the dtype and the number of axes of each
    constants: tuple[Any, ...]


def signatures() -> Iterator[KernelTypes]:
    """The signatures in use: those of calls with every dtype and combination of options.

    Found by calling `forward` and `backward` with a `launch` that only records its arguments.
    """
    from ml_dtypes import bfloat16

    found: dict[KernelTypes, None] = {}

    def note(stream: Any, grid: Any, kernel: Any, arguments: tuple[Any, ...]) -> None:
        arrays = tuple((x.dtype.name, x.ndim) for x in arguments if backend.is_array(x))
        found[KernelTypes(kernel, arrays, arguments[len(arrays) :])] = None

    names = SimpleNamespace(**{k: k for k in ("forward", "backward_query", "backward_key")})
    runner, dtypes = tiled.Runner(names, note, None), ("float16", "float32", "float64", bfloat16)
    yes_no = False, True
    options = list(itertools.product(yes_no, yes_no, yes_no, yes_no, (None, "array", "draw")))
    sizes = [(64, choice) for choice in options] + [(128, options[0]), (128, options[-1])]
    for dtype, (width, (inside, bias, sink, softcap, keep)) in itertools.product(dtypes, sizes):
        q, pairs = np.zeros((1, 1, 128, width), dtype), np.ones((128, 128), bool)
        x = tiled.laid_out(Arguments(
            q, q, q,
            bias=pairs.astype(dtype) if bias else None,
            sink=q[0, 0, 0, :1] if sink else None,
            softcap=2.0 if softcap else None,
            mask=masks.dense(pairs & ~np.eye(128, dtype=bool)) if inside else None,
            keep={None: None, "array": pairs, "draw": Draw(0, 0.5)}[keep],
            p=0.5 if keep else 0.0,
        ))  # fmt: skip
        with np.errstate(all="ignore"):  # the results are never filled
            out, lse = tiled.forward(x, runner)
            tiled.backward(x, out, lse, out, None, (True, True, True, bias, sink), runner)
    yield from found


def bytecode(signature: KernelTypes) -> bytes:
    """A kernel of `tiles` in cuTile's bytecode, for any GPU. Raises cuTile's error for wrong types
    or shapes."""
    from cuda.tile import compilation

    from . import tiles

    parameters = [*(_array(*array) for array in signature.arrays), *signature.constants]
    convention = compilation.CallingConvention.cutile_python_v2()
    made = compilation.KernelSignature(parameters, convention, symbol=signature.kernel)
    file = io.BytesIO()
    compilation.export_kernel(
        getattr(tiles, signature.kernel), [made], file,
        output_format="tileir_bytecode", bytecode_version="13.3",
    )  # fmt: skip
    return file.getvalue()


def _array(dtype: str, ndim: int) -> Any:
    """An array as CuPy allocates it: entries of a row side by side, and rows, where there are four
    axes, at multiples of 16 bytes."""
    import cuda.tile as ct
    from cuda.tile.compilation import ArrayConstraint

    kind = {"bool": ct.bool_}.get(dtype) or getattr(ct, dtype)
    row = 16 * 8 // kind.bitwidth if ndim == 4 else 1
    return ArrayConstraint(
        kind, ndim, index_dtype=ct.int32, stride_lower_bound_incl=0, alias_groups=(),
        may_alias_internally=False, stride_constant=[None] * (ndim - 1) + [1],
        stride_divisible_by=[row] * (ndim - 1) + [1], base_addr_divisible_by=16,
    )  # fmt: skip

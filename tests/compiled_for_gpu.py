"""Compile the kernels for a GPU on a machine that has none.

NVRTC compiles CUDA C++ to machine code. cuTile compiles tiles to bytecode, and its compiler
`tileiras` compiles that to machine code. Here it makes the same assumptions about each array as a
launch on a GPU would: with other assumptions, tileiras produces another program, and fails for
other kernels.

`tests/minimha/kernels/gpu/test_compiled.py` compiles every source in CUDA C++, all kernels of
common calls in float16 and float32, and one kernel each of calls that between them have every pair
of dtype, sizes and options. `benchmarks/registers.py --all` compiles everything. This needs Linux
and `pip install "minimha[gpu-checks]"`.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minimha import masks
from minimha.attention import Arguments, scaled_dot_product_attention
from minimha.functional.dropout import Draw
from minimha.kernels.gpu import tiled
from minimha_autograd import backend

ARCHITECTURES = "sm_75", "sm_80", "sm_90", "sm_100"
"""The GPUs that the CUDA C++ is compiled for: Turing (T4), Ampere (A100), Hopper, Blackwell. cuTile
supports all but the first."""

DTYPES = "float16", "bfloat16", "float32", "float64"
_LONGEST = 120  # seconds, after which tileiras is stopped


def nvrtc(source: str, architecture: str, real: str) -> bytes:
    """The machine code of a source in CUDA C++.

    architecture  a GPU, such as "sm_90"
    real          what `real` stands for in the source: "float" or "double"

    Raises cuda.core's error, with the compiler's messages, for a source that does not compile, and
    SyntaxError for one that compiles with warnings.
    """
    from cuda.core import Program, ProgramOptions

    messages = io.StringIO()
    options = ProgramOptions(arch=architecture, define_macro=("real", real))
    code = Program(source, "c++", options).compile("cubin", logs=messages).code
    if messages.getvalue():
        raise SyntaxError(messages.getvalue())
    return bytes(code)


class ArrayType(NamedTuple):
    """What `ct.launch` assumes of an array, in addition to an address divisible by 16 bytes.

    The tuples have one element for each axis. Strides are in entries.
    """

    dtype: str
    lengths: tuple[int | None, ...]  # 1, or None for any other length
    divisors: tuple[int, ...]  # what divides each length: 16, or 1 if 16 does not
    strides: tuple[int | None, ...]  # 1, or None for any other stride
    stride_divisors: tuple[int, ...]  # of the strides: the number of entries in 16 bytes, or 1
    overlaps: bool  # whether entries share memory, as they do along an axis with stride 0

    @classmethod
    def of(cls, x: np.ndarray) -> ArrayType:
        """The assumptions for a CuPy array with the dtype, the shape and the strides of x."""
        row = 16 // x.dtype.itemsize
        strides = [step // x.dtype.itemsize for step in x.strides]
        return cls(
            dtype=x.dtype.name,
            lengths=tuple(1 if n == 1 else None for n in x.shape),
            divisors=tuple(16 if n % 16 == 0 else 1 for n in x.shape),
            strides=tuple(1 if step == 1 else None for step in strides),
            stride_divisors=tuple(row if step % row == 0 and step != 1 else 1 for step in strides),
            overlaps=0 in strides,
        )

    def constraint(self) -> Any:
        """The same as an `ArrayConstraint` of cuTile."""
        import cuda.tile as ct
        from cuda.tile.compilation import ArrayConstraint

        return ArrayConstraint(
            {"bool": ct.bool_}.get(self.dtype) or getattr(ct, self.dtype),
            len(self.lengths),
            index_dtype=ct.int32,
            alias_groups=(),
            may_alias_internally=self.overlaps,
            shape_constant=self.lengths,
            shape_divisible_by=self.divisors,
            stride_lower_bound_incl=[None if step == 1 else 0 for step in self.strides],
            stride_constant=self.strides,
            stride_divisible_by=self.stride_divisors,
            base_addr_divisible_by=16,
        )


class Signature(NamedTuple):
    """A kernel of `tiles`, and the parameters for which a launch compiles it."""

    kernel: str
    parameters: tuple[Any, ...]  # an `ArrayType` for each array, and the constants


class Options(NamedTuple):
    """Which optional arguments a call of attention has."""

    mask: bool = False  # one that is not an interval of keys for each query
    bias: bool = False
    sink: bool = False
    softcap: bool = False
    keep: str | None = None  # dropout by an "array" or by a "draw"


class Sizes(NamedTuple):
    """B H G T S D of a call. Dv is D."""

    B: int
    H: int
    G: int
    T: int
    S: int
    D: int


_BOTH = False, True
EVERY_OPTION = [
    Options(*given)
    for given in itertools.product(_BOTH, _BOTH, _BOTH, _BOTH, (None, "array", "draw"))
]
COMMON = Sizes(2, 4, 2, 1024, 1024, 64), Sizes(2, 4, 2, 1024, 1024, 128)
OTHER = [
    Sizes(2, 4, 2, 200, 200, 64),  # T is not a multiple of a tile
    Sizes(2, 4, 2, 1, 200, 128),  # a single token, with a cache
    Sizes(1, 1, 1, 40, 50, 5),  # the bytes of a row are not a multiple of 16
    Sizes(1, 4, 1, 200, 200, 256),
]


def calls() -> Iterator[tuple[str, Sizes, Options]]:
    """The dtype, sizes and options of each call that `registers.py --all` compiles."""
    for dtype in DTYPES:
        for sizes in COMMON:
            for options in EVERY_OPTION:
                yield dtype, sizes, options
        for sizes in OTHER:
            if sizes.D > 128 and dtype in ("float32", "float64"):
                continue  # wider than tiles support: see `tiled.WIDEST`
            yield dtype, sizes, EVERY_OPTION[0]
            yield dtype, sizes, EVERY_OPTION[-1]


def signatures(
    dtype: str, sizes: Sizes, options: Options, architecture: str = "sm_90"
) -> list[Signature]:
    """The signatures of the three kernels that a call launches on a GPU: forward, backward_query,
    backward_key.

    They are found by calling `forward` and `backward` with a `launch` that only records its
    arguments.
    """
    found = []

    def note(stream: Any, grid: Any, kernel: Any, arguments: tuple[Any, ...]) -> None:
        parameters = (ArrayType.of(x) if backend.is_array(x) else x for x in arguments)
        found.append(Signature(kernel, tuple(parameters)))

    names = SimpleNamespace(**{k: k for k in ("forward", "backward_query", "backward_key")})
    runner = tiled.Runner(names, note, None)
    x = tiled.laid_out(_arguments(dtype, sizes, options))
    x = x._replace(capability=int(architecture.removeprefix("sm_")))
    with np.errstate(all="ignore"):  # no kernel fills the results: they may hold anything
        out, lse = tiled.forward(x, runner)
        wanted = scaled_dot_product_attention.wanted(
            query=True, key=True, value=True, bias=options.bias, sink=options.sink
        )
        tiled.backward(x, out, lse, out, None, wanted, runner)
    return found


def _arguments(dtype: str, sizes: Sizes, options: Options) -> Arguments:
    b, h, g, t, s, d = sizes
    number = np.dtype(dtype if dtype != "bfloat16" else _bfloat16())
    key = np.zeros((b, g, s, d), number)
    pairs = np.ones((b, h, t, s), bool)
    with_gaps = pairs.copy()
    with_gaps[..., 1 : s - 1 : 2] = False
    keep = {None: None, "array": pairs, "draw": Draw(0, 0.5)}[options.keep]
    return Arguments(
        np.zeros((b, h, t, d), number), key, key,
        bias=pairs.astype(number) if options.bias else None,
        sink=np.zeros(h, number) if options.sink else None,
        softcap=2.0 if options.softcap else None,
        mask=masks.dense(with_gaps) if options.mask else masks.causal(align="bottom-right"),
        keep=keep,
        p=0.5 if options.keep else 0.0,
    )  # fmt: skip


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def bytecode(signature: Signature) -> bytes:
    """A kernel of `tiles` in cuTile's bytecode, which is the same for every GPU.

    Raises cuTile's TileError for wrong types or shapes.
    """
    from cuda.tile import compilation

    from minimha.kernels.gpu import tiles

    parameters = [x.constraint() if isinstance(x, ArrayType) else x for x in signature.parameters]
    convention = compilation.CallingConvention.cutile_python_v2()
    made = compilation.KernelSignature(parameters, convention, symbol=signature.kernel)
    file = io.BytesIO()
    compilation.export_kernel(
        getattr(tiles, signature.kernel), [made], file,
        output_format="tileir_bytecode", bytecode_version="13.4",
    )  # fmt: skip
    return file.getvalue()


def machine_code(code: bytes, architecture: str) -> bytes:
    """The machine code of cuTile's bytecode for a GPU, such as "sm_90".

    Raises RuntimeError if the compiler fails or takes more than two minutes, FileNotFoundError if
    it is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "bytecode")
        made = Path(folder, "cubin")
        source.write_bytes(code)
        command = nvidia("tileiras"), source, "-o", made, "--gpu-name", architecture, "-O3"
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"tileiras takes longer than {_LONGEST} s") from error
        if done.returncode:
            raise RuntimeError(f"tileiras ends with {done.returncode}: {done.stderr.strip()}")
        return made.read_bytes()


def registers_and_spills(code: bytes) -> tuple[int, int]:
    """The registers of a thread, and the bytes that do not fit into them and spill to memory, for
    machine code with a single kernel.

    Raises FileNotFoundError if cuobjdump is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(code)
        command = nvidia("cuobjdump"), "--dump-resource-usage", path
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (usage,) = re.findall(r"REG:(\d+) STACK:(\d+)", text)
    return int(usage[0]), int(usage[1])


def nvidia(program: str) -> Path:
    """The path of a program in NVIDIA's wheels. Raises FileNotFoundError if no wheel has it."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob(f"cu13/bin/{program}*"):
            return path
    raise FileNotFoundError(f"no installed wheel of NVIDIA has {program}")

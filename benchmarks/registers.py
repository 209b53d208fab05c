"""How many registers the kernels for GPUs need, according to NVIDIA's compiler, without a GPU.

python benchmarks/registers.py [--quick] [--save docs/measured/registers.md]
python benchmarks/registers.py --all [--sample N] [--seed K]    everything that calls may need

Needs Linux, and pip install ".[gpu-checks]", which downloads 211 MB.
"""

from __future__ import annotations

import collections
import pathlib
import random
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any
from unittest import mock

import common

from minimha.kernels.gpu import tiled

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
import compiled_for_gpu as compiled

CAPABILITIES = {"sm_80": 80, "sm_90": 90, "sm_100": 100}
KERNELS = "forward", "backward_query", "backward_key"
CANDIDATES = {  # queries × keys, by kernel and bytes of a number
    ("forward", 2): [(64, 64), (128, 32), (128, 128)],
    ("forward", 4): [(64, 64)],
    ("backward_query", 2): [(64, 64), (128, 32), (128, 128)],
    ("backward_query", 4): [(64, 64)],
    ("backward_key", 2): [(64, 64), (128, 128)],
    ("backward_key", 4): [(32, 64)],
}
HEADS = [
    ("float16", 64),
    ("float16", 128),
    ("float16", 256),
    ("bfloat16", 64),
    ("bfloat16", 128),
    ("bfloat16", 256),
    ("float32", 64),
    ("float32", 128),
]
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
MOST_SPILLED = 100  # bytes of a thread, on sm_90

TITLE = """\
# Registers of the kernels for GPUs

`python benchmarks/registers.py`, on a machine without a GPU. It compiles the kernels of tiled
attention as a call with a causal mask and no options launches them, for heads of width D on GPUs of
compute capability 8.0 (sm_80), 9.0 and 10.0. Each cell shows the number of registers of a thread,
and how many bytes do not fit into them and spill to memory. A tile has queries × keys; **bold** are
the sizes in use. The compiler, `tileiras`, fails for some tiles, and is stopped after two minutes.
A product of float32 arrays is computed as three products in TF32.

How the sizes were chosen, in `tiled.TILES`:

- **Measured**: the large tiles of float16 on compute capability 9.0, for the widths 64 and 128, and
  of the forward in float32 for 64; other widths use the next size. There
  [a prototype of these kernels](gpu.md#a-prototype-without-branches) was fastest on an H200 with
  these sizes, except that `backward_key` with D = 128 took 8 % less time with 64 × 64 and another
  hint than the kernels have. bfloat16 has the sizes of float16.
- **Chosen by this table**: all others. On 9.0 they spill at most 8 bytes here. On 8.0 they spill no
  more than the other sizes here, with the exceptions below the table. Their speed has not been
  measured. GPUs of compute capability 10.0 use the sizes of 9.0, although more spills there, and
  where a size fails, attention uses another implementation.
- **Not chosen at all**: float64, which serves gradient checks, has tiles of 16 × 16 everywhere.

On 9.0 and later, some tiles are smaller for few queries, and with a mask given as an array, a bias,
a softcap or dropout. Those sizes are in the table too, but compiled without these options. For
heads of width 64 and 128 in float16, bfloat16 and float32, T = 200 and 1024, and S = 1024, we
compiled the kernels that calls on 9.0 launch with each combination of these options and a sink:
1,152 kernels, for 1,728 launches. More than 100 bytes spill in 24 kernels (48 launches), all in
float32 with an array of pairs: up to 144 in `backward_query` with D = 128, and up to 112 in
`backward_key` with D = 64 (we tried eight and seven other sizes, which spill more). With other
numbers of keys, more may spill: with T = S = 200, a mask and the array `keep`, 224 in this
`backward_query`, and 776 in `backward_key` in bfloat16 with D = 128.

In float64, which was not tuned, up to 3,184 bytes spill. The kernels as they are have not run on a
GPU.

"""


def cell(code: bytes, architecture: str) -> str:
    """Registers and bytes spilled."""
    try:
        made = compiled.machine_code(code, architecture)
    except RuntimeError:
        return "fails"
    registers, spilled = compiled.registers_and_spills(made)
    return f"{registers}" + (f", spills {spilled}" if spilled else "")


def candidates(kernel: str, dtype: str, width: int) -> list[tuple[int, int]]:
    """Sizes to compile, the smallest first: those of `tiled.TILES`, and some to compare."""
    itemsize = BYTES[dtype]
    sizes = {*tiled.TILES[kernel, itemsize, width], *CANDIDATES[kernel, itemsize]}
    return sorted(sizes, key=lambda size: (size[0] * size[1], size))


def row(kernel: str, dtype: str, width: int, size: tuple[int, int]) -> list[str]:
    """A row of the page."""
    sizes = compiled.COMMON[0]._replace(D=width)
    with mock.patch.object(tiled, "tile_sizes", return_value=size):
        signatures = compiled.signatures(dtype, sizes, compiled.Options())
    code = compiled.bytecode(signatures[KERNELS.index(kernel)])

    cells = []
    for architecture, capability in CAPABILITIES.items():
        text = cell(code, architecture)
        used = tiled.tile_sizes(kernel, BYTES[dtype], width, sizes.T, False, capability)
        cells.append(f"**{text}**" if size == used else text)
    return [kernel, dtype, str(width), f"{size[0]} × {size[1]}", *cells]


def rows(quick: bool) -> Iterator[list[str]]:
    for dtype, width in HEADS[:1] if quick else HEADS:
        for kernel in KERNELS:
            for size in candidates(kernel, dtype, width)[: 1 if quick else None]:
                yield row(kernel, dtype, width, size)


def spilled(cell: str) -> int:
    """The bytes of a cell; very many where the compiler fails."""
    return sys.maxsize if "fails" in cell else int(cell.strip("*").partition("spills ")[2] or 0)


def exceptions(rows: list[list[str]]) -> str:
    """The sizes in use on 8.0 that spill more than others in these rows."""
    others = collections.defaultdict(list)
    for *head, size, cell, _, _ in rows:
        others[tuple(head)].append((spilled(cell), size))
    lines = ["On 8.0, these sizes in use spill more bytes than another size:", ""]
    for kernel, dtype, width, size, cell, _, _ in rows:
        fewest, best = min(others[kernel, dtype, width])
        if cell.startswith("**") and spilled(cell) > fewest:
            line = f"- `{kernel}`, {dtype}, D = {width}: {spilled(cell):,} with {size}, and "
            lines.append(f"{line}{fewest:,} with {best}")
    return "\n".join(lines if lines[2:] else ["On 8.0, no size in use spills more than another."])


def page(quick: bool) -> str:
    names = (f"{name} {version(name)}" for name in ("cuda-tile", "nvidia-cuda-tileiras"))
    found = list(rows(quick))
    table = common.table(["kernel", "dtype", "D", "tile", *CAPABILITIES], found)
    return f"{TITLE}{table}\n\n{exceptions(found)}\n\n{', '.join(names)}.\n"


def compile_all(calls: list[tuple[Any, ...]]) -> int:
    """Compile what these calls launch on each GPU, and print what fails or spills much.

    Returns how many signatures fail.
    """
    from cuda.tile import TileError

    tried = failed = 0
    for architecture in CAPABILITIES:
        first = {}  # the first call that needs a signature
        for call in calls:
            for signature in compiled.signatures(*call, architecture):
                first.setdefault(signature, call)

        for signature, call in first.items():
            tried += 1
            problem = ""
            try:
                made = compiled.machine_code(compiled.bytecode(signature), architecture)
            except (RuntimeError, TileError) as error:
                failed += 1
                problem = f"fails: {error}"
            else:
                _, spilled = compiled.registers_and_spills(made)
                if architecture == "sm_90" and spilled > MOST_SPILLED:
                    problem = f"spills {spilled} bytes"
            if problem:
                m, n = signature.parameters[-4:-2]
                print(f"{architecture} {signature.kernel} {m} × {n} {call} {problem}", flush=True)

    print(f"{tried} compiled, {failed} failed")
    return failed


def main() -> None:
    parser = common.arguments(__doc__, quick="float16 with D = 64 and the smallest tiles only")
    parser.add_argument("--all", action="store_true", help="compile what any call may launch")
    parser.add_argument("--sample", type=int, help="with --all: only so many of the calls")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()

    if options.all:
        calls = list(compiled.calls())
        if options.sample is not None:
            calls = random.Random(options.seed).sample(calls, options.sample)
        sys.exit(compile_all(calls) > 0)
    common.show(page(options.quick), options.save)


if __name__ == "__main__":
    main()

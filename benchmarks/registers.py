"""How many registers the kernels for GPUs need, according to NVIDIA's compiler, without a GPU.

python benchmarks/registers.py [--quick] [--save docs/measured/registers.md]

Needs Linux and NVIDIA's compiler for tiles, which is a large download:
pip install ".[gpu-checks]" "cuda-tile[tileiras]" nvidia-cuda-cuobjdump
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import common

from minimha.kernels.gpu import compiled

ARCHITECTURES = compiled.ARCHITECTURES[1:]  # cuTile has no sm_75
LONGEST = 30  # seconds after which tileiras is stopped: a tile that spills much can take minutes
SIZES = (32, 32), (64, 32), (64, 64), (128, 64)  # candidates for the queries and keys in a tile
TITLE = f"""\
# Registers of the kernels for GPUs

`python benchmarks/registers.py`, on a machine without a GPU. It compiles the kernels of tiled
attention, without options such as dropout, for heads of width D on GPUs of compute capability 8.0
(sm_80), 9.0 and 10.0. Each cell shows the number of registers of a thread, and how many bytes do
not fit into them and spill to memory. The compiler, `tileiras`, fails for some tiles, and is
stopped after {LONGEST} s. `tiled.tile_sizes` chooses a large tile (queries × keys) that spills
little on sm_90; it is marked "in use". A product of float32 arrays is computed as three products in
TF32. The speed of the kernels has not been measured on a GPU yet.

"""


def nvidia(program: str) -> Path:
    """A program in NVIDIA's wheels. Raises FileNotFoundError if none is installed."""
    package = importlib.util.find_spec("nvidia")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob(f"cu13/bin/{program}*"):
            return path
    raise FileNotFoundError(f"no installed wheel of NVIDIA has {program}")


def cubin(code: bytes, architecture: str) -> bytes:
    """The machine code of cuTile's bytecode. Raises subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "bytecode"), Path(folder, "cubin")
        source.write_bytes(code)
        command = nvidia("tileiras"), source, "-o", made, "--gpu-name", architecture, "-O3"
        subprocess.run(command, check=True, capture_output=True, timeout=LONGEST)
        return made.read_bytes()


def registers_and_spills(code: bytes) -> tuple[int, int]:
    """Of machine code with a single kernel: the registers of a thread, and the bytes of those that
    do not fit and spill to memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cubin")
        path.write_bytes(code)
        command = nvidia("cuobjdump"), "--dump-resource-usage", path
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (usage,) = re.findall(r"REG:(\d+) STACK:(\d+)", text)
    return int(usage[0]), int(usage[1])


def cell(code: bytes, architecture: str) -> str:
    try:
        registers, spilled = registers_and_spills(cubin(code, architecture))
    except subprocess.TimeoutExpired:
        return f"not in {LONGEST} s"
    except subprocess.CalledProcessError:
        return "tileiras fails"
    return f"{registers}" + (f", spills {spilled}" if spilled else "")


def rows(sizes: tuple[tuple[int, int], ...]) -> list[list[str]]:
    """Registers and bytes spilled for each size of a tile."""
    found = []
    for signature in compiled.signatures():
        (dtype, _), *_ = signature.arrays
        *options, m, n, d, _ = signature.constants
        if dtype not in ("float16", "float32") or any(x is True for x in options) or options[1]:
            continue
        for size in sizes:
            code = compiled.bytecode(signature._replace(constants=(*options, *size, d, d)))
            cells = [cell(code, architecture) for architecture in ARCHITECTURES]
            used = " (in use)" if size == (m, n) else ""
            tile = f"{size[0]} × {size[1]}{used}"
            found.append([signature.kernel, dtype, str(d), tile, *cells])
    return found


def main() -> None:
    options = common.arguments(__doc__, quick="the smallest tile only").parse_args()
    found = rows(SIZES[:1] if options.quick else SIZES)
    names = (f"{name} {version(name)}" for name in ("cuda-tile", "nvidia-cuda-tileiras"))
    table = common.table(["kernel", "dtype", "D", "tile", *ARCHITECTURES], found)
    common.show(f"{TITLE}{table}\n\n{', '.join(names)}.\n", options.save)


if __name__ == "__main__":
    main()

"""How long `import minimha` takes, beside `import numpy`, in processes that take turns.

python benchmarks/importing.py [--quick] [--save docs/measured/importing.md]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from common import add_options, ratios, show, spread, table, versions

BOUND = 1.8
IMPORT = """
import time
start = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""
TITLE = f"""# What importing costs

`python benchmarks/importing.py`. The two imports take turns, each in a fresh process, with bytecode
already compiled, as pip leaves it. The first column is what a clock on the wall shows, the second
what the CPU worked, both in milliseconds: the median, in brackets the quarter and the three-quarter
mark. The aim is at most {BOUND} of NumPy's time.

"""


def seconds(package: str, cache: str) -> tuple[float, ...]:
    """Wall-clock and CPU time of one import in a new process."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
    command = [sys.executable, "-c", IMPORT.format(package)]
    done = subprocess.run(
        command, env=os.environ | kept, stdout=subprocess.PIPE, text=True, check=True
    )
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add_options(parser, quick="3 processes each")
    options = parser.parse_args()
    packages = "numpy", "minimha"
    with tempfile.TemporaryDirectory() as cache:
        for package in packages:
            seconds(package, cache)  # compiles
        runs = [
            [seconds(package, cache) for package in packages]
            for _ in range(3 if options.quick else 31)
        ]
    rows = [
        [package, *(spread([1e3 * t for t in times]) for times in zip(*measured, strict=True))]
        for package, measured in zip(packages, zip(*runs, strict=True), strict=True)
    ]
    of_numpy = [ratios(ours, numpys) for numpys, ours in runs]
    rows.append(["minimha / NumPy", *map(spread, zip(*of_numpy, strict=True))])
    wall = statistics.median(wall for wall, _ in of_numpy)
    verdict = "holds" if wall <= BOUND else "is missed"
    show(
        f"{TITLE}{table(['import', 'elapsed, ms', 'CPU, ms'], rows)}\n\n"
        f"The aim {verdict}.\n\n{versions()}\n",
        options.save,
    )


if __name__ == "__main__":
    main()

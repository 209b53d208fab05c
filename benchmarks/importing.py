"""How long `import minimha` takes compared with `import numpy`, in processes that take turns.

python benchmarks/importing.py [--quick] [--save docs/measured/importing.md]
"""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial

import common
from common import printed, ratios, spread, table, take_turns, verdict

BOUND = 1.8
IMPORT = """
import time
start = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""
TITLE = f"""# What importing costs

`python benchmarks/importing.py`. The imports of minimha and NumPy take turns, each in a new
process. The bytecode is already compiled, as after an installation with pip. The table shows
elapsed time and CPU time in milliseconds: the median, with the quartiles in brackets. The aim is at
most {BOUND} times NumPy's time.

"""


def main() -> None:
    options = common.arguments(__doc__, quick="5 processes each").parse_args()
    packages = "numpy", "minimha"
    calls = {package: partial(printed, "-c", IMPORT.format(package)) for package in packages}
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        take_turns(calls, 1)  # compiles
        times = take_turns(calls, 5 if options.quick else 41)
    elapsed, cpu = ({p: [run[k] for run in runs] for p, runs in times.items()} for k in (0, 1))
    rows = [[p, *(spread([1e3 * t for t in kind[p]]) for kind in (elapsed, cpu))] for p in packages]
    compared = [ratios(kind["minimha"], kind["numpy"]) for kind in (elapsed, cpu)]
    bounds = [verdict(statistics.median(ratio), BOUND) for ratio in compared]
    rows += [["minimha / numpy", *map(spread, compared)], ["bound", *bounds]]
    text = f"{TITLE}{table(['import', 'elapsed, ms', 'CPU, ms'], rows)}\n\n{common.machine()}\n"
    common.show(f"{text}{common.versions()}\n", options.save)


if __name__ == "__main__":
    main()

"""How long `import minimha` takes, beside `import numpy`, in processes that take turns.

python benchmarks/importing.py [--quick] [--save docs/measured/importing.md]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from common import add_options, machine, printed, ratios, show, spread, table, verdict, versions

BOUND = 1.8
IMPORT = """
import time
start = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - start[0], time.process_time() - start[1])
"""
TITLE = f"""# What importing costs

`python benchmarks/importing.py`. The two imports take turns, each in a fresh process, with bytecode
already compiled, as pip leaves it. Elapsed time and CPU time, in milliseconds: the median, in
brackets the quartiles. The aim is at most {BOUND} of NumPy's time.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    add_options(parser, quick="5 processes each")
    options = parser.parse_args()
    packages = "numpy", "minimha"
    times: dict[str, list[list[float]]] = {package: [] for package in packages}
    with tempfile.TemporaryDirectory() as cache:
        kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": cache}
        for k in range(6 if options.quick else 42):
            for package, runs in times.items():
                measured = printed("-c", IMPORT.format(package), **kept)
                if k:  # the first run compiles
                    runs.append(measured)
    elapsed, cpu = ({p: [run[k] for run in runs] for p, runs in times.items()} for k in (0, 1))
    rows = [[p, *(spread([1e3 * t for t in kind[p]]) for kind in (elapsed, cpu))] for p in packages]
    compared = [ratios(kind["minimha"], kind["numpy"]) for kind in (elapsed, cpu)]
    bounds = [verdict(statistics.median(ratio), BOUND) for ratio in compared]
    rows += [["minimha / numpy", *map(spread, compared)], ["bound", *bounds]]
    text = f"{TITLE}{table(['import', 'elapsed, ms', 'CPU, ms'], rows)}\n\n{machine()}\n"
    show(f"{text}{versions()}\n", options.save)


if __name__ == "__main__":
    main()

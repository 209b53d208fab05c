"""A data-parallel training step: two ranks with a thread each, or one process with two threads.

python benchmarks/data_parallel.py [--quick] [--save docs/measured/data_parallel.md]

The two take turns, each in new processes: `mpiexec -n 2 python benchmarks/data_parallel.py --steps`
makes the steps of a turn on two ranks and prints their median time and the bytes that a rank sends.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from functools import partial
from pathlib import Path

import common
from common import ratios, seconds, spread, table, verdict

import minimha as mh
from minimha import training
from minimha.training import data

BATCH, CONTEXT = 12, 256
SIZES = {"d_model": 64, "num_heads": 4, "num_layers": 2}  # the tour's
RANKS, BOUND = 2, 1.15
SKIPPED, COUNTED = 10, 60  # steps of a turn
TITLE = f"""# What data-parallel training costs

`python benchmarks/data_parallel.py`. A training step of the GPT of the tour (the command `minimha`
alone: {SIZES["num_layers"]} layers, {SIZES["num_heads"]} heads, width {SIZES["d_model"]}), but with
a context of {CONTEXT}, on {BATCH} sequences in float32: one process with {RANKS} threads
is compared with {RANKS} ranks under mpiexec with one thread each. The two take turns, each in new
processes. A turn has {SKIPPED + COUNTED} steps and gives the median time of the last {COUNTED}. The
table shows the median over the turns, with the quartiles in brackets; a ratio compares two
consecutive turns. The aim is at most {BOUND} times the time of one process.

"""


def steps(quick: bool) -> tuple[float, float]:
    """The median time of a step on the ranks that were started, in ms, and the bytes that this one
    sends in a step."""
    comm, text = mh.parallel.world(), data.python_reference()
    vocabulary = data.CharacterTokenizer(text)
    model = mh.GPT(len(vocabulary), context=CONTEXT, **SIZES, rng=0)
    settings = {"steps": 10**6, "batch": BATCH, "lr": 1e-3}
    tokens = vocabulary.encode(text)
    run = (
        training.ParallelTraining(model, tokens, comm=comm, way="data", **settings)
        if comm.size > 1
        else training.Training(model, tokens, **settings)
    )
    count = (1, 3) if quick else (SKIPPED, COUNTED)
    times = [seconds(partial(next, run)) for _ in range(sum(count))][count[0] :]
    return 1e3 * statistics.median(times), comm.sent.bytes / sum(count)


def main() -> None:
    parser = common.arguments(__doc__, quick="two short turns")
    parser.add_argument("--steps", action="store_true", help="only make the steps of a turn")
    options = parser.parse_args()
    if options.steps:
        time, sent = steps(options.quick)
        if mh.parallel.world().rank == 0:
            print(time, sent)
        return
    machine = common.machine()
    arguments = [__file__, "--steps", *(["--quick"] if options.quick else [])]
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    mpiexec = shutil.which("mpiexec", path=folders) or sys.exit('pip install ".[mpi]"')
    one, two = f"1 process, {RANKS} threads", f"{RANKS} ranks, 1 thread each"
    calls = {
        one: partial(common.printed, *arguments, OMP_NUM_THREADS=str(RANKS)),
        two: partial(
            common.printed, *arguments, starter=[mpiexec, "-n", str(RANKS)], OMP_NUM_THREADS="1"
        ),
    }
    results = common.take_turns(calls, 2 if options.quick else 15)
    times = {name: [time for time, _ in turns] for name, turns in results.items()}
    text = TITLE + table(
        ["", "time of a step, ms", "sent by a rank in a step, kB"],
        [[name, spread(times[name]), f"{results[name][0][1] / 1e3:.0f}"] for name in calls],
    )
    compared = ratios(times[two], times[one])
    bound = verdict(statistics.median(compared), BOUND)
    text += f"\n\nRatio: {spread(compared)}; the bound {bound}.\n\n"
    mpis = {"mpi4py": "mpi4py", "MPICH": "mpich"}
    common.show(f"{text}{machine}\n{common.versions(**mpis)}\n", options.save)


if __name__ == "__main__":
    main()

"""What `test_mpi.py` runs on several ranks: mpiexec -n 3 python on_mpi.py NAME."""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

import minimha as mh
from minimha import kernels
from minimha.__main__ import main
from minimha.parallel import WAYS, run, world
from minimha.training import ParallelTraining, Training

DTYPES = "f2", "f4", "f8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"
SHAPES = (), (0,), (3,), (2, 0, 3), (3, 4)


def messages(comm):
    """Arrays of every dtype and shape arrive as they were sent, large ones and views too."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [np.full(shape, comm.rank + 1, dtype) for dtype in DTYPES for shape in SHAPES]
    table = np.arange(24.0).reshape(4, 6) + comm.rank
    sent += [table.T, table[::2, 1::2], table[0, ::2], np.full(1_000_000, comm.rank + 0.5)]
    for x in sent:
        if comm.size > 1:
            comm.send(x, after)
    for x in sent:
        y = comm.recv(before) if comm.size > 1 else x
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert np.array_equal(y, x - comm.rank + before if x.dtype != bool else x)
    if comm.size > 1:
        assert (comm.sent.bytes, comm.sent.messages) == (sum(x.nbytes for x in sent), len(sent))


def collectives(comm):
    """Values and gradients are those of the threads, bit for bit."""

    def work(comm):
        x = mh.Tensor(np.random.default_rng(comm.rank).standard_normal((5, 7)), requires_grad=True)
        y = comm.all_gather(comm.all_to_all(comm.reduce_scatter(x, 1), 0, 1) ** 2, 0)
        y = comm.broadcast(comm.all_reduce(y), comm.size - 1)
        (y * y * (comm.rank + 1)).sum().backward()
        return y.data, x.grad

    for ours, theirs in zip(work(comm), run(work, comm.size)[comm.rank], strict=True):
        assert np.array_equal(ours, theirs)


def changes(comm):
    """After a collective, an array may change, even if others are late."""
    x = np.zeros(1_000_000)
    if comm.rank:
        time.sleep(0.2)
    y = comm.broadcast(x, 0)
    if comm.rank == 0:
        x += 1
    else:
        assert not y.any()


def training(comm):
    """Fifty steps in float64 have the losses of one process, whichever way they are shared."""
    tokens = np.random.default_rng(0).integers(0, 7, 300)
    settings = {"steps": 50, "batch": 5, "lr": 1e-2}

    def model():
        sizes = {"context": 11, "d_model": 16, "num_heads": 4, "num_layers": 2}
        return mh.GPT(7, **sizes, tie=True, dtype="float64", rng=0)

    expected = list(Training(model(), tokens, **settings))
    for way in WAYS:
        losses = list(ParallelTraining(model(), tokens, comm=comm, way=way, **settings))
        np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-12)


def disagree(comm):
    comm.step = 3
    comm.all_reduce(np.ones(3 if comm.rank else 4))


def end_early(comm):
    if comm.rank == 1:
        sys.exit(3)
    comm.all_gather(np.ones(3))


def do_not_receive(comm):
    if comm.rank == 1:
        comm.send(np.ones(3), 0)


def do_not_send(comm):
    if comm.rank == 0:
        comm.recv(1)
    time.sleep(200)


def one_raises(comm):
    comm.all_reduce(np.ones(3))
    if comm.rank == 1:
        raise ZeroDivisionError("on purpose")
    comm.all_reduce(np.ones(3))


def all_raise(comm):
    raise ZeroDivisionError("on purpose")


def cannot_go_on(comm):
    return comm.fail("minimha: not this way", 2)


def is_killed(comm):
    comm.all_reduce(np.ones(3))
    time.sleep(0.5)
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(np.ones(3))


def arrays_on_a_gpu(comm):
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import cupy_on_numpy

    with cupy_on_numpy.installed():
        comm.all_gather(mh.backend.library("cupy").ones(3))


def idle(comm):
    """A rank that waits does not keep a core busy."""
    if comm.rank == 0:
        time.sleep(1.5)
    before = time.process_time()
    comm.all_reduce(np.ones(3))
    assert time.process_time() - before < 0.5


def threads(comm):
    """The ranks divide the cores, for kernels and for BLAS."""
    wanted = max(1, os.cpu_count() // comm.size)
    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert blas
    assert {kernels.threads.number(), *blas} == {wanted}


def is_killed_in_training(comm):
    """`minimha train` with the arguments in the environment."""
    step = ParallelTraining.__next__

    def step_or_die(self):
        if (comm.rank, self.step) == (1, 6):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self)

    ParallelTraining.__next__ = step_or_die
    main(os.environ["TRAIN"].split())


if __name__ == "__main__":
    for name in sys.argv[2:]:
        globals()[name](world(timeout=float(sys.argv[1])))

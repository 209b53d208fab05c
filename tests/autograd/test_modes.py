"""no_grad and detect_anomaly: the code that they apply to, and the code that they do not."""

import asyncio
import contextlib
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import minimha as mh
from minimha import ops


def leaf(values=(1.0, 2.0, 3.0)):
    return mh.Tensor(np.array(values), requires_grad=True)


def records():
    """Whether operations are recorded at this point."""
    return (leaf() * 2.0).requires_grad


def test_no_grad_records_nothing_and_ends_with_its_block():
    block = mh.no_grad()
    with block:
        with block:
            assert not records()
        assert not records()
    with pytest.raises(ZeroDivisionError), block:
        1 / 0  # noqa: B018
    assert records()


def test_no_grad_stays_in_its_thread():
    with mh.no_grad(), ThreadPoolExecutor() as pool:
        assert pool.submit(records).result()


def test_no_grad_stays_in_its_task():
    async def evaluates():
        with mh.no_grad():
            await asyncio.sleep(0)
            return records()

    async def trains():
        await asyncio.sleep(0)
        return records()

    async def both():
        return await asyncio.gather(evaluates(), trains(), evaluates(), trains())

    assert asyncio.run(both()) == [False, True, False, True]


def test_a_task_and_to_thread_inherit_the_block_in_which_they_start():
    async def later():
        return records()

    async def starts():
        with mh.no_grad():
            task, thread = asyncio.create_task(later()), asyncio.to_thread(records)
        return await task, await thread

    assert asyncio.run(starts()) == (False, True)  # to_thread starts where it is awaited

    async def awaits_inside():
        with mh.no_grad():
            return await asyncio.to_thread(records)

    assert asyncio.run(awaits_inside()) is False


def test_generators_may_close_their_blocks_in_any_order():
    def generating():
        with mh.no_grad():
            yield

    with contextlib.contextmanager(generating)():
        assert not records()
    first, second = generating(), generating()
    next(first), next(second)
    first.close()  # not the block that was opened last
    assert not records()
    second.close()
    assert records()


def yields():
    yield


async def awaits():
    pass


async def yields_later():
    yield


def test_no_grad_as_a_decorator():
    @mh.no_grad()
    def evaluate():
        """Doc."""
        return records()

    assert not evaluate()
    assert evaluate.__doc__ == "Doc."
    assert records()
    with pytest.raises(TypeError, match="takes no arguments"):
        mh.no_grad(records)
    for function in (yields, awaits, yields_later, functools.partial(yields)):
        with pytest.raises(TypeError, match="open the block inside it"):
            mh.no_grad()(function)


def test_an_anomaly_names_the_operation_and_the_line_that_called_it():
    def loss(x):
        shifted = x - 2.0
        return ops.log(shifted * shifted).sum()  # the line to name

    with np.errstate(all="ignore"):
        loss(leaf())  # no error outside
        with pytest.raises(FloatingPointError) as failure, mh.detect_anomaly():
            loss(leaf())
    message = str(failure.value)
    assert message.startswith("infinity first appeared in log at (1,)\ncalled from\n")
    assert message.splitlines()[-1].strip().endswith("# the line to name")
    assert "test_modes.py" in message.splitlines()[-2]


@pytest.mark.parametrize("careful", [True, False])
def test_an_anomaly_of_the_backward_names_the_line_of_the_forward(careful):
    x = leaf([0.0, 4.0])
    with np.errstate(all="ignore"):
        with mh.detect_anomaly() if careful else contextlib.nullcontext():
            y = ops.sqrt(x).sum()  # the forward
        with pytest.raises(FloatingPointError) as failure, mh.detect_anomaly():
            y.backward()
    message = str(failure.value)
    assert (
        "infinity first appeared in the backward of sqrt, in the gradient of x at (0,)" in message
    )
    assert message.endswith("# the forward" if careful else "(a line outside detect_anomaly)")
    assert x.grad is None


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: leaf([0.0, np.nan]) * 2.0, r"multiply received a NaN: a at \(1,\)"),
        (lambda: leaf().clip(np.nan, 1.0), "clip received a NaN: min"),
    ],
)
def test_a_nan_in_the_inputs_is_distinguished_from_a_new_one(use, message):
    with pytest.raises(FloatingPointError, match=message), mh.detect_anomaly():
        use()


def test_an_anomaly_of_a_scalar_is_found(place):
    x = mh.Tensor(place(np.array(0.0)), requires_grad=True)
    with np.errstate(all="ignore"), mh.detect_anomaly():
        with pytest.raises(FloatingPointError, match=r"infinity first appeared in log at \(\)"):
            ops.log(x)
        with pytest.raises(FloatingPointError, match="in the backward of sqrt"):
            ops.sqrt(x).backward()


def test_an_infinity_among_the_inputs_is_no_anomaly():
    with mh.detect_anomaly():
        masked = ops.where(np.array([True, False, True]), leaf(), -np.inf)
        mh.functional.softmax(masked + leaf([0.0, -np.inf, 0.0])).sum().backward()
        ops.pad(leaf(), pad_width=1, value=-np.inf)


@pytest.mark.parametrize("careful", [True, False])
def test_detect_anomaly_detects_one_changed_entry_of_a_large_array(careful):
    x = leaf(np.ones((100, 100)))
    with mh.detect_anomaly() if careful else contextlib.nullcontext():
        (x * x).sum().backward()  # without a change there is no error
        y, z = (x * x).sum(), (x * x).sum()
    y.backward()
    x.data[3, 4] = 2.0
    with pytest.raises(RuntimeError) if careful else contextlib.nullcontext():
        z.backward()

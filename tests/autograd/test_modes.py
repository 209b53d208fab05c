"""no_grad and detect_anomaly: where they hold, and where they do not."""

import asyncio
import contextlib
import threading

import numpy as np
import pytest

import minimha as mh
from minimha import ops


def leaf(values=(1.0, 2.0, 3.0)):
    return mh.Tensor(np.array(values), requires_grad=True)


def records():
    """Whether operations are recorded here."""
    return (leaf() * 2.0).requires_grad


def test_no_grad_records_nothing_and_ends_with_its_block():
    with mh.no_grad():
        assert not records()
        with mh.no_grad():
            assert not records()
        assert not records()
    assert records()
    with pytest.raises(ZeroDivisionError), mh.no_grad():
        1 / 0  # noqa: B018
    assert records()


def test_one_block_may_be_entered_again():
    block = mh.no_grad()
    with block:
        with block:
            assert not records()
        assert not records()
    assert records()


def test_no_grad_stays_in_its_thread():
    seen = []
    with mh.no_grad():
        thread = threading.Thread(target=lambda: seen.append(records()))
        thread.start()
        thread.join()
    assert seen == [True]


def generating():
    with mh.no_grad():
        yield records()
        yield records()


@contextlib.contextmanager
def evaluating():
    with mh.no_grad():
        yield


def generating_in_a_context_manager():
    with evaluating():
        yield records()
        yield records()


def generating_in_a_stack():
    with contextlib.ExitStack() as stack:
        stack.enter_context(mh.no_grad())
        yield records()
        yield records()


@mh.no_grad()
def decorated_generator():
    yield records()
    yield records()


@pytest.mark.parametrize(
    "generator",
    [generating, generating_in_a_context_manager, generating_in_a_stack, decorated_generator],
)
def test_no_grad_does_not_leak_out_of_a_generator(generator):
    inside = generator()
    assert not next(inside)
    assert records()
    assert not next(inside)
    assert records()
    other = generator()
    next(other)
    inside.close()  # not the one that was opened last
    assert records()
    assert not next(other)
    del other  # never finished
    assert records()


def test_a_context_manager_made_of_a_generator_holds_for_its_block():
    @contextlib.contextmanager
    def twice():
        with evaluating():
            yield

    for manager in (evaluating, twice):
        with manager():
            assert not records()
        assert records()


def test_no_grad_as_a_decorator():
    @mh.no_grad()
    def evaluate():
        """Doc."""
        return records()

    assert not evaluate()
    assert evaluate.__doc__ == "Doc."
    assert records()


def test_no_grad_stays_in_its_task():
    @mh.no_grad()
    async def evaluates():
        await asyncio.sleep(0)
        return records()

    async def trains():
        await asyncio.sleep(0)
        return records()

    async def both():
        return await asyncio.gather(evaluates(), trains(), evaluates(), trains())

    assert asyncio.run(both()) == [False, True, False, True]


def test_an_anomaly_names_the_operation_and_the_line_that_called_it():
    def loss(x):
        shifted = x - 2.0
        return ops.log(shifted * shifted).sum()  # the line to name

    with np.errstate(all="ignore"):
        loss(leaf())  # silent outside
        with pytest.raises(FloatingPointError) as failure, mh.detect_anomaly():
            loss(leaf())
    message = str(failure.value)
    assert message.startswith("infinity first appeared in log, at (1,)\ncalled from\n")
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
    assert message.endswith(
        "# the forward" if careful else "(it was called outside detect_anomaly)"
    )
    assert x.grad is None


def test_a_nan_that_was_given_is_told_from_one_that_was_made():
    with (
        pytest.raises(FloatingPointError, match=r"multiply was given a NaN: a at \(1,\)"),
        mh.detect_anomaly(),
    ):
        leaf([0.0, np.nan]) * 2.0


def test_an_infinity_among_the_inputs_is_no_anomaly():
    with mh.detect_anomaly():
        masked = ops.where(np.array([True, False, True]), leaf(), -np.inf)
        mh.functional.softmax(masked + leaf([0.0, -np.inf, 0.0])).sum().backward()
        ops.pad(leaf(), pad_width=1, value=-np.inf)


def test_a_large_array_that_did_not_change_raises_no_alarm():
    x = leaf(np.ones((100, 100)))
    with mh.detect_anomaly():
        (x * x).sum().backward()
        y = (x * x).sum()
    y.backward()


def test_whole_checksums_see_one_entry_of_a_large_array():
    for careful in (True, False):
        x = leaf(np.ones((100, 100)))
        with mh.detect_anomaly() if careful else contextlib.nullcontext():
            y = (x * x).sum()
            x.data[3, 4] = 2.0
            with pytest.raises(RuntimeError) if careful else contextlib.nullcontext():
                y.backward()


def test_one_block_may_be_shared_by_threads():
    block, entered, left, seen = mh.no_grad(), threading.Event(), threading.Event(), {}

    def first():
        with block:
            entered.set()
            left.wait(10)
        seen["first"] = records()

    def second():
        entered.wait(10)
        with block:
            seen["inside"] = records()
        seen["second"] = records()
        left.set()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"first": True, "inside": False, "second": True}


def test_a_task_that_outlives_its_block_records():
    async def child():
        await asyncio.sleep(0)
        return records()

    def begun():
        with mh.no_grad():
            return asyncio.ensure_future(child())

    async def main():
        return await begun()

    assert asyncio.run(main())


class Evaluating:
    """A context manager that opens a block within."""

    def __enter__(self):
        self.block = mh.no_grad()
        self.block.__enter__()

    def __exit__(self, *error):
        self.block.__exit__(*error)

    async def __aenter__(self):
        self.__enter__()

    async def __aexit__(self, *error):
        self.__exit__(*error)


def test_a_context_manager_opens_a_block_for_who_uses_it():
    def evaluates():
        with Evaluating():
            yield records()
            yield records()
        yield records()

    steps = evaluates()
    assert [(next(steps), records()) for _ in range(3)] == [
        (False, True), (False, True), (True, True)
    ]  # fmt: skip
    with Evaluating():
        assert not records()

    async def awaits():
        async with Evaluating():
            inside = records()
        return inside, records()

    assert asyncio.run(awaits()) == (False, True)
    assert records()


def test_every_kind_of_function_can_be_decorated():
    @mh.no_grad()
    async def yields():
        yield records()

    async def collected():
        return [value async for value in yields()]

    assert asyncio.run(collected()) == [False]

    @mh.no_grad()
    async def answers():
        heard = []
        try:
            while True:
                try:
                    heard.append((yield records()))
                except (KeyError, asyncio.CancelledError):
                    heard.append("thrown")
                    if len(heard) > 2:
                        return
        finally:
            closed.append(heard)

    async def asks():
        made = answers()
        asked = [await made.__anext__(), await made.asend(7), await made.athrow(KeyError())]
        with pytest.raises(StopAsyncIteration):
            await made.athrow(asyncio.CancelledError())
        other = answers()
        await other.__anext__()
        await other.aclose()
        return asked, records()

    closed = []
    assert asyncio.run(asks()) == ([False] * 3, True)
    assert closed == [[7, "thrown", "thrown"], []]
    with pytest.raises(TypeError, match=r"write it with \(\)"):
        mh.no_grad(records)
    with pytest.raises(TypeError, match="decorates functions, not the class"):
        mh.no_grad()(int)


def test_an_anomaly_of_a_scalar_is_found(place):
    x = mh.Tensor(place(np.array(0.0)), requires_grad=True)
    with np.errstate(all="ignore"), mh.detect_anomaly():
        with pytest.raises(FloatingPointError, match=r"infinity first appeared in log, at \(\)"):
            ops.log(x)
        with pytest.raises(FloatingPointError, match="in the backward of sqrt"):
            ops.sqrt(x).backward()


def test_an_anomaly_where_gradients_meet_is_found():
    huge = mh.Tensor(np.array([3e38], dtype="float32"))
    with np.errstate(all="ignore"), mh.detect_anomaly():
        x = mh.Tensor(np.array([1e-30], dtype="float32"), requires_grad=True)
        y = x * 1.0
        with pytest.raises(
            FloatingPointError, match="in the whole gradient of the value of multiply"
        ):
            (y * huge + y * huge).backward()
        y = x * 1.0
        y.register_hook(lambda gradient: gradient * np.float32(np.nan))
        with pytest.raises(FloatingPointError, match="NaN in the whole gradient"):
            y.backward()


def test_a_block_may_be_left_from_another_frame():
    class Evaluation:
        def __enter__(self):
            self.block = mh.no_grad()
            self.block.__enter__()

        def __exit__(self, *error):
            self.block.__exit__(*error)

    with Evaluation():
        assert not records()
    assert records()
    stack = contextlib.ExitStack()

    def opened():
        stack.enter_context(mh.no_grad())
        stack.enter_context(mh.no_grad())

    opened()
    assert not records()
    stack.close()
    assert records()


def test_a_nan_in_a_setting_is_named():
    with pytest.raises(FloatingPointError, match="clip was given a NaN: min"), mh.detect_anomaly():
        leaf().clip(np.nan, 1.0)


def test_an_anomaly_of_a_sum_leaves_every_gradient_as_it_was():
    x = leaf([1.0])
    x.grad = np.array([1.7e308])
    with (
        np.errstate(all="ignore"),
        mh.detect_anomaly(),
        pytest.raises(FloatingPointError, match="in the whole gradient of a leaf"),
    ):
        (x * 1e308).sum().backward()
    assert x.grad == [1.7e308]

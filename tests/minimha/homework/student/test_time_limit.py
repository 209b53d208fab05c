"""A function that computes or waits for ever is stopped; a right answer on a busy machine is not."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

import answers
import busy
import numpy as np
import pytest
from graded import TASK, judged, outcomes

from minimha import homework, parallel
from minimha.homework.checks import time_limit
from minimha.homework.checks.time_limit import Spent
from minimha.homework.checks.verdicts import FAILED, PASSED
from minimha.homework.student import interrupts, student_files
from minimha.homework.teacher.grading import process
from minimha.homework.teacher.grading.process import Limits


@pytest.mark.parametrize(("computing", "clock", "says"), [
    (9.9, 9.9, ""),
    (9.9, 59.0, ""),
    (10.1, 45.0, "10 seconds of processor time: an endless loop?"),
    (19.0, 9.9, ""),  # two threads compute at once
    (0.04, 60.1, "60 seconds, although it computed for at most 10 of them: does it sleep"),
])  # fmt: skip
def test_the_limit_is_on_what_is_computed_and_the_clock_alone_counts_six_times(
    computing, clock, says
):
    found = Spent(computing + 3, clock + 1000).since(Spent(3, 1000)).exceeds(10)
    assert found.startswith(says)
    assert bool(found) == bool(says)


@pytest.fixture
def limits(monkeypatch):
    """0.5 s of processor time for a check; much more on the clock, as the machine may be busy."""
    monkeypatch.setattr(interrupts, "SECONDS", 0.5)
    monkeypatch.setattr(time_limit, "PATIENCE", 200)
    return Limits(seconds=0.5, megabytes=250)


def loops():
    while True:
        pass


def catches_everything():
    while True:
        with contextlib.suppress(Exception):
            try:
                for _ in range(10**9):
                    pass
            except:  # noqa: E722
                pass


def catches_and_starts_again():
    while True:
        try:
            loops()
        except BaseException as error:
            sys.stderr.write(str(error))


def adds_up_a_range():
    return [sum(range(10**6)) for _ in range(10**6)]


def multiplies():
    x = np.ones((300, 300))
    while True:
        x = x @ x / 300


def spins_in_a_thread():
    end = time.monotonic() + 60  # the thread itself goes on

    def spin():
        while time.monotonic() < end and not STOPPED.is_set():
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    thread.join()


def spins_on_a_rank():
    def on_rank(comm):
        while comm.rank == 1 and not STOPPED.is_set():
            pass
        return comm.recv(1 - comm.rank)

    return parallel.run(on_rank, 2)


STOPPED = threading.Event()


@pytest.mark.skipif(sys.platform == "win32", reason="needs an alarm")
@pytest.mark.parametrize("call", [
    loops, catches_everything, catches_and_starts_again, adds_up_a_range,
    pytest.param(multiplies, marks=pytest.mark.this_cpu("no error can leave the option's loops")),
    spins_in_a_thread, spins_on_a_rank,
])  # fmt: skip
@pytest.mark.usefixtures("limits")
def test_what_never_stops_computing_is_stopped(call):
    STOPPED.clear()
    try:
        with pytest.raises(TimeoutError, match=r"^stopped after 0\.5 seconds of processor time"):
            interrupts.in_time(call)
    finally:
        STOPPED.set()
    assert interrupts.in_time(abs, -2) == 2


ENDLESS_LIST = """
import numpy as np
def scaled(*_, **__):
    def forever():
        n = 0.0
        while True:
            n += 1.5
            yield n
    return np.array(list(forever()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs an alarm")
@pytest.mark.usefixtures("limits")
def test_alarms_while_the_memory_of_an_endless_list_is_freed_change_nothing(monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS", 0.2)
    setitimer = signal.setitimer
    monkeypatch.setattr(  # a list this short is freed in less than 0.1 s
        signal, "setitimer", lambda which, seconds, interval=0.0: setitimer(
            which, seconds, min(interval, 0.002)
        )
    )  # fmt: skip
    yours = answers.function("scaled", ENDLESS_LIST)
    for _ in range(3):
        found = student_files.verdict(TASK, TASK.checks[0], yours, None)
        assert found.outcome == FAILED
        assert found.message.startswith("TimeoutError: stopped after 0.2 seconds of processor time")


@pytest.mark.skipif(sys.platform == "win32", reason="needs an alarm")
@pytest.mark.usefixtures("limits")
def test_only_lines_inside_the_call_are_interrupted():
    def hooks():
        return [frame.f_trace for frame, _ in traceback.walk_stack(sys._getframe(1))]

    before = hooks()
    with pytest.raises(TimeoutError):
        interrupts.in_time(catches_everything)
    assert hooks() == before


def sleeps():
    time.sleep(60)


def waits_for_a_lock():
    lock = threading.Lock()
    with lock, lock:
        pass


def waits_for_a_process():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"], check=True)


@pytest.mark.skipif(sys.platform == "win32", reason="needs an alarm")
@pytest.mark.parametrize("call", [sleeps, waits_for_a_lock, waits_for_a_process])
def test_what_waits_for_ever_is_stopped_and_called_waiting(call, monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS", 0.2)
    monkeypatch.setattr(time_limit, "PATIENCE", 3)
    with pytest.raises(
        TimeoutError, match=r"^stopped after 0\.6 seconds, although .* sleep or wait"
    ):
        interrupts.in_time(call)


NEVER_DONE = {
    "loops": ("while True: pass", "not done after 0.5 seconds of processor time: an endless loop?"),
    "in C": ("sum(range(10**12))", "not done after 0.5 seconds of processor time: an endless loop?"),
    "sleeps": ("import time; time.sleep(99)", "not done after 1 seconds, although it computed for"),
    "waits for itself": ("import threading; threading.Lock().acquire() and threading.Event().wait()",
                         "not done after 1 seconds, although it computed for"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "says"), NEVER_DONE.values(), ids=NEVER_DONE)
def test_grading_stops_what_computes_or_waits_for_ever(line, says, limits, monkeypatch):
    if "although" in says:
        monkeypatch.setattr(time_limit, "PATIENCE", 2)
    first, _ = judged(f"def scaled(*_, **__):\n    {line}\n", limits)
    assert first.outcome == FAILED
    assert first.message.startswith(says)


def test_nothing_that_a_submission_does_gives_it_more_time(limits):
    source = """
        import time
        time.process_time = time.monotonic = time.clock_gettime = lambda *_: 0.0
        def scaled(*_, **__):
            while True: pass
    """
    first, _ = judged(source, limits)
    assert first.message.startswith("not done after 0.5 seconds of processor time")


@pytest.fixture(scope="module")
def beside_busy_processes():
    process._server.cache_clear()  # the next one shares their processor, too
    with busy.processes():
        yield
    process._server.cache_clear()


COMPUTING = """
import time
def scaled(x, factor, *, tap=lambda name, x: x):
    end = time.process_time() + 0.25
    while time.process_time() < end: pass
    return tap("y", factor * x), lambda dy: (factor * dy,)
"""


@pytest.mark.usefixtures("beside_busy_processes")
@pytest.mark.parametrize("command", ["check", "grade"])
def test_half_of_the_limit_is_enough_however_busy_the_machine_is(command, limits):
    yours = answers.function("scaled", COMPUTING)
    start = time.monotonic()
    if command == "check":
        found = [student_files.verdict(TASK, check, yours, None) for check in TASK.checks]
    else:
        found = judged(COMPUTING, limits)
    assert outcomes(found) == [PASSED, PASSED]
    if busy.SHARED:
        assert time.monotonic() - start > 2 * limits.seconds  # the clock alone would refuse it


FIRST = {}
for answer in answers.RIGHT:
    FIRST.setdefault(answer.task, answer)
SAMPLE = list(FIRST.values())[::3]


@pytest.mark.thorough
@pytest.mark.usefixtures("beside_busy_processes")
@pytest.mark.parametrize("answer", SAMPLE, ids=lambda answer: answer.task)
def test_right_answers_pass_beside_busy_processes(answer, monkeypatch):
    monkeypatch.setattr(interrupts, "SECONDS", 3)
    monkeypatch.setattr(time_limit, "PATIENCE", 60)
    task, code = homework.course()[answer.task], f"import numpy as np\n{answer.code()}"
    yours = answers.function(task.name, code)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [student_files.verdict(task, check, yours, None) for check in task.checks]
    assert outcomes(found) == [PASSED] * len(task.checks), found
    graded = judged(code, Limits(3), task)
    assert outcomes(graded) == [PASSED] * len(task.checks), graded

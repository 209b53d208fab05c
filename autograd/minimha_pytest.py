"""The pytest plugin: gradient checks that read as tests, and arrays of any library.

    @pytest.mark.gradcheck(axes=["B T"])
    def test_softmax(rng):
        return softmax, rng.standard_normal((3, 5))

Active on install. A module of its own beside the packages, because pytest imports it in every
project: it loads neither of them, nor NumPy, before a test asks for what they hold.

A failure shows the lines of the test and the diagnosis; --full-trace shows ours between them.
What a test checks is told by the engine's logger `minimha.gradcheck`, so that the summary knows of
direct calls of mh.gradcheck as well.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Any

import pytest

KNOWN = ("numpy", "array-api-strict", "torch", "cupy")

SHOWN = 20
"""The lines of the summary; what comes after them is counted."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register --array-backend and --homework."""
    group = parser.getgroup("minimha")
    group.addoption(
        "--array-backend",
        default="numpy",
        metavar="NAMES",
        help="array libraries for tests that use the fixture xp, separated by commas: "
        f"{', '.join(KNOWN)} (default: numpy)",
    )
    group.addoption(
        "--homework",
        default=".",
        metavar="PATH",
        help="folder, or one file, that `pytest --pyargs minimha.homework` checks (default: here)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the fixture xp for the libraries named; a project's own xp still overrides it."""
    names = [name.strip() for name in config.getoption("--array-backend").split(",")]
    for name in names:
        if name not in KNOWN:
            raise pytest.UsageError(f"--array-backend: {name!r} is not one of {', '.join(KNOWN)}")

    class Libraries:
        @pytest.fixture(params=list(dict.fromkeys(names)))
        def xp(self, request: pytest.FixtureRequest) -> Any:
            """The array-API namespace of a library, each of those in --array-backend in turn."""
            from minimha_autograd import backend  # not for those who never ask for xp

            try:
                return backend.library(request.param)
            except RuntimeError as error:
                pytest.skip(str(error))

    config.addinivalue_line(
        "markers",
        "gradcheck(**settings): the test returns a function and its inputs, `return f, x, y`, and "
        "its gradients are checked; settings, such as axes, names and rng, are those of "
        "mh.gradcheck, and the defaults of the fixture gradcheck.",
    )
    config.stash[LISTENER] = Listener()
    config.pluginmanager.register(Libraries(), "minimha-xp")
    if not hasattr(config, "workerinput"):  # xdist's workers hand their reports on
        config.pluginmanager.register(Summary(), "minimha-summary")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Any:
    """A NumPy generator seeded with the name of the test: the same numbers in every run, others
    in every test and for every set of its parameters."""
    import numpy as np

    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def gradcheck(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """mh.gradcheck, `gradcheck(f, x, y)`: compare the gradients of f with numeric ones. The
    settings in @pytest.mark.gradcheck(axes=…, names=…, rng=…) are its defaults."""
    return _gradcheck(request.node)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let -m gradcheck select the tests that use the fixture as well."""
    if "gradcheck" in getattr(item, "fixturenames", ()):
        item.add_marker("gradcheck")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Check what a marked test returns; whoever calls the test calls it as before."""
    test = pyfuncitem.obj
    if pyfuncitem.get_closest_marker("gradcheck") is None:
        return (yield)
    pyfuncitem.obj = _returning_nothing(pyfuncitem, test)
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _returning_nothing(item: pytest.Function, test: Callable[..., Any]) -> Callable[..., Any]:
    """The test with what it returns checked."""

    def check(returned: Any, arguments: dict[str, Any]) -> None:
        checks_itself = "gradcheck" in item.fixturenames or item.config.stash[LISTENER].checks
        if returned is not None or not checks_itself:
            _at_return(test, arguments, lambda: _check(item, returned))

    @functools.wraps(test)
    def checked(**arguments: Any) -> None:
        check(test(**arguments), arguments)

    @functools.wraps(test)
    async def checked_later(**arguments: Any) -> None:
        check(await test(**arguments), arguments)

    return checked_later if inspect.iscoroutinefunction(test) else checked


def _check(item: pytest.Function, returned: Any) -> None:
    """Check the function and inputs that a test returned."""
    if isinstance(returned, tuple) and len(returned) > 1 and callable(returned[0]):
        _gradcheck(item)(*returned)
        return
    kind = "nothing" if returned is None else f"a {type(returned).__name__}"
    if isinstance(returned, tuple):
        kind += f" of {', '.join(type(x).__name__ for x in returned) or 'nothing'}"
    pytest.fail(
        f"returned {kind}, not a function and its inputs\n"
        "a test marked gradcheck returns what is to be checked: return f, x, y"
    )


def _gradcheck(node: Any) -> Callable[..., Any]:
    """mh.gradcheck with the settings of the node's marks, the closest of which count."""
    from minimha import gradcheck  # of which the diagnosis knows attention too

    settings: dict[str, Any] = {}
    for mark in node.iter_markers("gradcheck"):
        if mark.args:
            pytest.fail("the mark gradcheck takes settings by name: axes=…, names=…, rng=…")
        settings = mark.kwargs | settings
    return functools.partial(gradcheck, **settings)


def _at_return(
    test: Callable[..., Any], arguments: dict[str, Any], check: Callable[[], None]
) -> None:
    """Call check from a frame that looks like that of the test at the line where it returns.

    The test is over when what it returned is checked. Its line is what a failure has to show, in
    every style of traceback that pytest has.
    """
    import ast
    import dis

    code = getattr(inspect.unwrap(test), "__code__", None)
    if code is None:  # a partial, or an object that can be called
        return check()
    first = code.co_firstlineno
    ends = [i for i in dis.get_instructions(code) if i.opname in ("RETURN_VALUE", "RETURN_CONST")]
    places = {end.positions for end in ends if end.positions and end.positions.lineno}
    line, last, column, stop = places.pop() if len(places) == 1 else (first, first, 0, 0)
    expression = ast.parse("__check__()", mode="eval")
    for node in ast.walk(expression.body):  # as the return; lines count from the first of the code
        vars(node).update(lineno=line - first + 1, end_lineno=last - first + 1)
        vars(node).update(col_offset=column, end_col_offset=stop)
    call = compile(expression, code.co_filename, "eval")
    return eval(
        call.replace(co_name=code.co_name, co_firstlineno=first),
        {"__check__": check, "__name__": test.__module__},
        arguments,
    )


# A failure shows the lines of its user: what follows leaves ours out.


@pytest.hookimpl(specname="pytest_runtest_makereport")
def pytest_leave_out_our_lines(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """Before the report is made, and after unittest has handed over its errors."""
    if call.excinfo is not None and not item.config.getoption("fulltrace", False):
        call.excinfo = _shortened(call.excinfo)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: Any) -> Generator[None, Any, Any]:
    """The same for what a file checks while it is imported."""
    represent = collector.repr_failure
    if not collector.config.getoption("fulltrace", False):
        collector.repr_failure = lambda excinfo: _in_short(
            represent(_shortened(excinfo)), excinfo.value
        )
    return (yield)


def _shortened(excinfo: pytest.ExceptionInfo[Any]) -> pytest.ExceptionInfo[Any]:
    """The error without the frames of the checker and, where a gradient is wrong, of minimha."""
    if isinstance(excinfo.value, pytest.skip.Exception):
        return excinfo
    errors = list(_chain(excinfo.value))
    ours = ["minimha_autograd.gradcheck", __name__]
    if any(isinstance(error, _wrong()) for error in errors):
        ours += ["minimha_autograd", "minimha"]
    found = [_leave_out(ours, error) for error in errors]
    return excinfo if not any(found) else pytest.ExceptionInfo.from_exception(excinfo.value)


def _wrong() -> Any:
    """GradcheckError, if anyone can have raised it."""
    return getattr(sys.modules.get("minimha_autograd"), "GradcheckError", ())


def _chain(error: Any) -> Iterator[BaseException]:
    """The error, those it came from, and those in a group or a doctest."""
    seen, waiting = set[int](), [error]
    while waiting:
        error = waiting.pop()
        if isinstance(error, BaseException) and id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
            waiting += [*getattr(error, "exc_info", ()), *getattr(error, "failures", ())]


def _leave_out(ours: list[str], error: BaseException) -> bool:
    """Take what lies in these modules out of the traceback of the error; whether there was any."""
    found, kept, entry = False, list[TracebackType](), error.__traceback__
    while entry is not None:
        module = entry.tb_frame.f_globals.get("__name__") or ""
        if any(f"{module}.".startswith(f"{name}.") for name in ours):
            found = True
        else:
            kept.append(entry)
        entry = entry.tb_next
    if found:
        for entry, following in zip(kept, [*kept[1:], None], strict=False):
            entry.tb_next = following
        error.__traceback__ = kept[0] if kept else None
    return found


def _in_short(representation: Any, error: BaseException) -> Any:
    """The failure as pytest shows it, with "GradcheckError" for the full name of the class, and
    with the diagnosis alone in the short summary, where space is dear."""
    if wrong := _wrong():
        name, whole = wrong.__name__, getattr(representation, "reprtraceback", None)
        parts = [part[0] for part in getattr(representation, "chain", ())] or [whole]
        texts = [entry.lines for part in parts if part for entry in part.reprentries]
        texts += [lines for _, lines in getattr(representation, "reprlocation_lines", ())]
        for lines in texts:
            lines[:] = [line.replace(f"{wrong.__module__}.{name}", name) for line in lines]
        crash = getattr(representation, "reprcrash", None)
        if crash is not None and isinstance(error, wrong):
            crash.message = str(error)
    return representation


# The summary of all checks: heard in the process of a test, carried by its report, and shown.


class Listener:
    """A filter that keeps the checks told since the last report, and lets no record pass."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    def filter(self, record: logging.LogRecord) -> bool:
        """Take what the record says about a check; keep it out of everyone's logs."""
        check = getattr(record, "check", None)
        if check is not None:
            self.checks.append(check)
        return check is None


LISTENER = pytest.StashKey[Listener]()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Listen to the checker while tests run."""
    logger, listener = logging.getLogger("minimha.gradcheck"), session.config.stash[LISTENER]
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addFilter(listener)
    try:
        return (yield)
    finally:
        logger.removeFilter(listener)
        logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the checks in the report of what made them, which xdist hands on; shorten its words."""
    report = yield
    listener = item.config.stash[LISTENER]
    if listener.checks:
        report.minimha_checks, listener.checks = listener.checks, []  # type: ignore[attr-defined]
    if call.excinfo is not None:
        _in_short(report.longrepr, call.excinfo.value)
    return report


class Summary:
    """All checks of a run: those that failed a test first, then the others as they came."""

    def __init__(self) -> None:
        self.counts, self.seconds = Counter[str](), 0.0
        self.failed: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the checks out of a report; keep no more than can be shown."""
        for told in vars(report).pop("minimha_checks", ()):
            failed = report.failed and not told["passed"]
            verdict = "ok" if told["passed"] else FAILED if failed else EXPECTED
            self.counts[verdict] += 1
            self.seconds += told["seconds"]
            kept = self.failed if failed else self.others
            if len(kept) < SHOWN:
                kept.append(told | {"verdict": verdict, "test": report.nodeid})

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print them; with -q one line, with -qq or --no-summary none."""
        verbosity = config.get_verbosity()
        if not self.counts or verbosity < -1 or config.getoption("no_summary", False):
            return
        if verbosity < 0:
            number = self.counts.total()
            title = f"{number} gradient check{'s' * (number > 1)}"
            terminalreporter.write_line(f"{title}, {_outcome(self.counts, self.seconds)}")
            return
        terminalreporter.write_sep("=", "gradient checks")
        shown = (self.failed + self.others)[:SHOWN]
        for told, line in zip([{}, *shown], _table(shown), strict=True):
            terminalreporter.write_line(line, red=told.get("verdict") == FAILED)
        if rest := self.counts - Counter(told["verdict"] for told in shown):
            seconds = self.seconds - sum(told["seconds"] for told in shown)
            terminalreporter.write_line(f"… and {rest.total()} more, {_outcome(rest, seconds)}")


FAILED, EXPECTED = "wrong", "wrong as expected"


def _outcome(counts: Counter[str], seconds: float) -> str:
    wrong = [f"{counts[verdict]} {verdict}" for verdict in (FAILED, EXPECTED) if counts[verdict]]
    return f"{', '.join(wrong) or 'all passed'}, in {seconds:.1f} s"


def _table(shown: list[dict[str, Any]]) -> Iterator[str]:
    """A line of headers, and one a check."""
    head = "", "check", "input", "error", "allowed", "time", "test", "note"
    cells: list[tuple[str, ...]] = [head]
    for told in shown:
        numbers = ["—" if told[key] is None else f"{told[key]:.1e}" for key in ("error", "allowed")]
        seconds = f"{told['seconds']:.2f} s"
        cells.append(
            (
                *(told["verdict"], told["name"], told["input"] or "—", *numbers, seconds),
                *(told["test"], told["note"]),
            )
        )
    if not any(row[-1] for row in cells[1:]):
        cells = [row[:-1] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()

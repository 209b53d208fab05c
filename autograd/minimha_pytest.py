"""The pytest plugin: gradient checks that read as tests, and arrays of any library.

    @pytest.mark.gradcheck(axes=["B T"])
    def test_softmax(rng):
        return softmax, rng.standard_normal((3, 5))

The plugin is active once it is installed. It is a module of its own because pytest imports it in
every project: it loads neither minimha nor NumPy until a test needs them.

mh.gradcheck sends a record of each check to the logger `minimha.gradcheck`, so that the summary
also counts direct calls of mh.gradcheck.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

__tracebackhide__ = True  # a failure shows the user's lines; --full-trace shows ours as well

ERROR = "GradcheckError"
LIBRARIES = ("numpy", "array-api-strict", "torch", "cupy")
DEST = "minimha_array_backend"  # where pytest keeps our --array-backend, and not a project's


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option --homework of pytest: the folder, or one file, of homework to check."""
    parser.getgroup("minimha").addoption(
        "--homework",
        default=".",
        metavar="PATH",
        help="folder, or one file, that `pytest --pyargs minimha.homework` checks (default: here)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(parser: pytest.Parser) -> Generator[None, Any, Any]:
    """Register --array-backend after all conftest files are loaded, unless one of these, or another
    plugin, has registered it already."""
    returned, option = (yield), "--array-backend"
    try:
        is_new = option in parser.parse_known_and_unknown_args([option])[1]
    except pytest.UsageError:  # it needs a value
        is_new = False
    if is_new:
        parser.getgroup("minimha").addoption(
            option,
            dest=DEST,
            default="numpy",
            metavar="NAMES",
            help="array libraries for tests that use the fixture xp, separated by commas: "
            f"{', '.join(LIBRARIES)} (default: numpy)",
        )
    return returned


def pytest_configure(config: pytest.Config) -> None:
    """Define the fixture xp, with one parameter for each library named by --array-backend; a
    project's own fixture xp overrides it. Also register the mark gradcheck and, except in a worker
    of xdist, the `Summary`. Raises UsageError for an unknown library."""
    names = [name.strip() for name in config.getoption(DEST, "numpy").split(",")]
    for name in names:
        if name not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise pytest.UsageError(f"--array-backend: {name!r} is not one of {known}")

    class Libraries:
        @pytest.fixture(params=list(dict.fromkeys(names)))
        def xp(self, request: pytest.FixtureRequest) -> Any:
            """The array-API namespace of a library. A test runs once for each library in
            --array-backend."""
            from minimha_autograd import backend  # only tests that ask for xp load it

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
    config.stash[CHECKS] = []
    config.pluginmanager.register(Libraries(), "minimha-xp")
    if not hasattr(config, "workerinput"):  # xdist's workers hand their reports on
        config.pluginmanager.register(Summary(), "minimha-summary")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Any:
    """A NumPy generator seeded with the name of the test, which includes its parameters: the same
    numbers in every run, and different ones in tests with different names."""
    import numpy as np

    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def gradcheck(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """mh.gradcheck, `gradcheck(f, x, y)`: compare the gradients of f with numeric ones. The
    settings in @pytest.mark.gradcheck(axes=…, names=…, rng=…) are its defaults."""
    return _gradcheck(request.node)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let -m gradcheck also select the tests that use the fixture gradcheck."""
    if "gradcheck" in getattr(item, "fixturenames", ()):
        item.add_marker("gradcheck")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """Run a test that has the mark gradcheck, and check the gradients of the function that it
    returns. A test that calls gradcheck itself need not return anything."""
    test = pyfuncitem.obj
    if pyfuncitem.get_closest_marker("gradcheck") is None:
        return (yield)

    @functools.wraps(test)
    def checked(**arguments: Any) -> None:
        returned = test(**arguments)
        checks_itself = "gradcheck" in pyfuncitem.fixturenames or pyfuncitem.config.stash[CHECKS]
        if returned is not None or not checks_itself:
            _call_at_return(test, lambda: _check(pyfuncitem, returned))

    pyfuncitem.obj = checked
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _check(item: pytest.Function, returned: Any) -> None:
    """Check the gradients of the function and inputs that the test `item` returned, as the tuple
    (f, x, y, …). The test fails if it returned anything else."""
    if isinstance(returned, tuple) and len(returned) > 1 and callable(returned[0]):
        _gradcheck(item)(*returned)
        return
    kind = "nothing" if returned is None else f"a {type(returned).__name__}"
    pytest.fail(
        f"returned {kind}, not a function and its inputs\n"
        "a test marked gradcheck returns what is to be checked: return f, x, y"
    )


def _gradcheck(node: Any) -> Callable[..., Any]:
    """mh.gradcheck with the settings in the gradcheck marks of a test, `node`, as defaults. If
    several marks give the same setting, the mark closest to the test wins."""
    from minimha_autograd import gradcheck

    if importlib.util.find_spec("minimha"):
        import minimha  # noqa: F401 — it adds the likely mistake to the messages

    settings: dict[str, Any] = {}
    for mark in node.iter_markers("gradcheck"):
        if mark.args:
            pytest.fail("the mark gradcheck takes settings by name: axes=…, names=…, rng=…")
        settings = mark.kwargs | settings
    return functools.partial(gradcheck, **settings)


def _call_at_return(test: Callable[..., Any], check: Callable[[], None]) -> None:
    """Call check(), which checks what a test has returned, so that the traceback of a failure
    points at the last return statement of the test, or at its last line if it has none. The test's
    own frame is gone by then, so another frame with the same name and file stands in for it."""
    test = inspect.unwrap(test)
    code = test.__code__
    lines, first = inspect.getsourcelines(test)
    returns = [n for n, line in enumerate(lines) if line.lstrip().startswith("return")]
    at = returns[-1] if returns else len(lines) - 1
    call = "\n" * at + "check(\n)"  # on two lines: pytest underlines what is on one
    frame = compile(call, code.co_filename, "exec")
    frame = frame.replace(co_name=code.co_name, co_firstlineno=first)  # its lines count from there
    exec(frame, {"check": check, "__name__": test.__module__})


CHECKS = pytest.StashKey[list[dict[str, Any]]]()
"""The key in the stash of the configuration for the checks that were logged since the last
report."""


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, Any, Any]:
    """Collect the records that `mh.gradcheck` logs while the tests run, and keep them out of all
    other logs."""
    logger, checks = logging.getLogger("minimha.gradcheck"), session.config.stash[CHECKS]

    def listen(record: logging.LogRecord) -> bool:
        if hasattr(record, "check"):
            checks.append(record.check)
        return not hasattr(record, "check")

    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addFilter(listen)
    try:
        return (yield)
    finally:
        logger.removeFilter(listen)
        logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Store the gradient checks of a test in its report, which xdist passes on to the main process.
    In the report, shorten minimha_autograd.GradcheckError to GradcheckError."""
    report = yield
    checks = item.config.stash[CHECKS]
    if checks:
        report.minimha_checks = [*checks]  # type: ignore[attr-defined]
        checks.clear()
    for traceback, *_ in getattr(report.longrepr, "chain", ()):
        for entry in traceback.reprentries:
            entry.lines[:] = [
                line.replace(f"minimha_autograd.{ERROR}", ERROR) for line in entry.lines
            ]
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash and call.excinfo is not None and call.excinfo.typename == ERROR:
        crash.message = str(call.excinfo.value)  # in the short summary, where space is limited
    return report


class Summary:
    """All gradient checks of a run in the order of the tests, and the table that shows them: first
    the checks that failed a test, then the others."""

    SHOWN = 20  # lines; further checks are counted

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Move the gradient checks from the report of a test to `checks`, each with its verdict."""
        for check in vars(report).pop("minimha_checks", ()):
            failed = "wrong" if report.failed else "wrong as expected"
            verdict = "ok" if check["passed"] else failed
            self.checks.append(check | {"verdict": verdict, "test": report.nodeid})

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print why array libraries were skipped, then the table of checks: only one line with -q,
        nothing with -qq or --no-summary."""
        skipped = {report.longrepr[2] for report in terminalreporter.stats.get("skipped", ())}
        for reason in sorted(text for text in skipped if "the array library" in text):
            terminalreporter.write_line(reason)
        verbosity, number = config.get_verbosity(), len(self.checks)
        if not number or verbosity < -1 or config.getoption("no_summary", False):
            return
        if verbosity < 0:
            title = f"{number} gradient check{'s' * (number > 1)}"
            terminalreporter.write_line(f"{title}, {_outcome(self.checks)}")
            return
        terminalreporter.write_sep("=", "gradient checks")
        ordered = sorted(self.checks, key=lambda check: check["verdict"] != "wrong")
        shown, rest = ordered[: self.SHOWN], ordered[self.SHOWN :]
        for check, line in zip([{}, *shown], _table(shown), strict=True):
            terminalreporter.write_line(line, red=check.get("verdict") == "wrong")
        if rest:
            terminalreporter.write_line(f"… and {len(rest)} more, {_outcome(rest)}")


def _outcome(checks: list[dict[str, Any]]) -> str:
    counts = Counter(check["verdict"] for check in checks)
    wrong = [f"{counts[v]} {v}" for v in ("wrong", "wrong as expected") if counts[v]]
    seconds = sum(check["seconds"] for check in checks)
    return f"{', '.join(wrong) or 'all passed'}, in {seconds:.1f} s"


def _table(shown: list[dict[str, Any]]) -> list[str]:
    """The lines of the table of gradient checks: the headers, then one line for each check in
    `shown`."""
    note = "note" if any(check["note"] for check in shown) else ""
    rows = [("", "check", "input", "error", "allowed", "time", "test", note)]
    for check in shown:
        error, allowed = (
            "—" if check[key] is None else f"{check[key]:.1e}" for key in ("error", "allowed")
        )
        row = (check["verdict"], check["name"], check["input"] or "—", error, allowed)
        rows.append((*row, f"{check['seconds']:.2f} s", check["test"], check["note"] or ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

"""The report on a GPU, written on a stand-in for CuPy: every line runs, and all times are the same."""

import contextlib
import importlib.util
import io
import json
import math
import re
import sys
from types import SimpleNamespace

import cupy_on_numpy
import numpy as np
import pytest

from minimha.__main__ import main
from minimha.gpu_report import measuring, report
from minimha.kernels import attention as ways
from minimha.kernels.gpu import cuda, fused, tiled

TITLES = [part.title for part in report.PARTS.values()]
ERRORS = report.PARTS["implementations"].title

EPS = {"float32": 2**-23, "float16": 2**-10}
if importlib.util.find_spec("ml_dtypes"):
    EPS["bfloat16"] = 2**-7
MS = 60.0  # what every measurement of time gives


def in_this_process(command, seconds):
    """In place of `report._output`: the stand-ins exist in this process only."""
    if "pytest" in command:
        return PYTEST, ["exit code 1: no message"]
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(shown):
        main(command[command.index("gpu-report") :])
    return shown.buffer.getvalue().decode(), []


def benchmark(run, n_repeat, *, n_warmup, max_duration=math.inf):
    """In place of CuPy's, on one GPU."""
    for _ in range(n_warmup + 1):
        run()
    return SimpleNamespace(gpu_times=np.full((1, n_repeat), MS / 1e3))


PYTEST = """\
[gw0] [ 33%] PASSED tests/a.py::test_a[cupy]
[gw1] [ 66%] FAILED tests/a.py::test_b[cupy]
tests/a.py::test_c[cupy] PASSED   [100%]
FAILED tests/a.py::test_b[cupy] - ValueError: it FAILED | no
"""


@pytest.fixture
def card(monkeypatch):
    """A machine with a GPU, as far as the report looks at it."""
    properties = {"name": b"Stand-in 1", "major": 9, "minor": 0, "totalGlobalMem": 2**33}
    pool = SimpleNamespace(free_all_blocks=lambda: None, total_bytes=lambda: 3 * 2**20)
    with cupy_on_numpy.installed():
        import cupy

        monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
        monkeypatch.setitem(sys.modules, "cupyx.profiler", SimpleNamespace(benchmark=benchmark))
        for owner, name, value in (
            (cupy.cuda.runtime, "getDeviceProperties", lambda _: properties),
            (cupy.cuda.runtime, "driverGetVersion", lambda: 13010),
        ):
            monkeypatch.setattr(owner, name, value, raising=False)
        monkeypatch.setattr(report, "_output", in_this_process)
        monkeypatch.setattr(report, "QUICK", measuring.Sizes(40, (32,), 2, 1, 64, 16, 2, 1))
        yield


@pytest.fixture
def plain(card, monkeypatch):
    """A card without kernels and without PyTorch: the report takes a moment."""
    failed = {(name, "cupy"): "there is no GPU" for name in ("fused", "tiled")}
    monkeypatch.setattr(ways, "_failed", failed)
    monkeypatch.setattr(cuda, "REALS", {})  # supports no dtype: a compiler would take a second
    monkeypatch.setitem(sys.modules, "torch", None)


def measured(part):
    """The rows of a part."""
    output, _ = in_this_process(["gpu-report", "--quick", "--part", part], 1)
    return list(map(json.loads, output.splitlines()))


def written(folder, *options):
    """The Markdown, and the parts in the JSON by title."""
    assert main(["gpu-report", "--out", str(folder), *options]) == 0
    text = folder.joinpath("gpu_stand_in_1.md").read_text(encoding="utf-8")
    data = json.loads(folder.joinpath("gpu_stand_in_1.json").read_text(encoding="utf-8"))
    assert data["card"] == "Stand-in 1"
    return text, {part["title"]: part for part in data["parts"]}


@pytest.mark.usefixtures("plain")
def test_every_part_is_in_both_files(tmp_path):
    text, parts = written(tmp_path, "--quick")
    assert list(parts) == re.findall("^## (.*)", text, re.MULTILINE) == TITLES
    assert "for CUDA 13.1 |" in text
    assert re.search(r"\| auto \| float32 \| none \| .* \| reference \|", text)
    assert "- fused, float32: RuntimeError: there is no GPU\n" in text
    assert "| forward | float32 | 32 | none | 60 | failed |" in text
    assert parts["The tests on CuPy"]["problems"] == ["left out by --quick"]


@pytest.mark.usefixtures("plain")
def test_errors_are_those_of_rounding():
    rows = measured("implementations")
    good = [row for row in rows if "failed" not in row]
    assert {(r["implementation"], r["dtype"], r["mask"]) for r in good} == {
        (name, dtype, mask)
        for name in ("reference", "auto")
        for dtype in EPS
        for mask in ("none", "causal")
    }
    assert {row["runs"] for row in good} == {"reference"}
    for row in good:
        eps = EPS[row["dtype"]]
        assert all(eps / 100 < row[what] < 20 * eps for what in ("out", "dq", "dk", "dv"))


@pytest.mark.usefixtures("plain")
def test_speeds_count_the_visible_pairs():
    rows = [row for row in measured("times") if "failed" not in row]
    assert len(rows) == 2 * len(EPS) * 2  # passes, dtypes, masks: of the reference
    for row in rows:
        work = 4 * 2 * 32**2 * 64 / (1 + (row["mask"] == "causal"))
        work *= 3.5 if "backward" in row["pass"] else 1
        np.testing.assert_allclose(row["TFLOP/s"], work / MS / 1e9)
        assert (row["ms"], row["MiB"]) == (MS, 3)


@pytest.mark.usefixtures("plain")
def test_a_kernel_that_fails_is_no_row_of_the_implementation_that_takes_over(monkeypatch):
    def crash(*_):
        raise RuntimeError("misaligned address")

    monkeypatch.setattr(fused, "_launch", crash)
    del ways._failed["fused", "cupy"]
    rows = [row for row in measured("implementations") if row["implementation"] == "fused"]
    assert len(rows) == 6
    assert all("out" not in row for row in rows)
    assert "misaligned address" in rows[0]["failed"]


@pytest.mark.usefixtures("plain")
def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    def output(command, seconds):
        if "implementations" in command:
            return '{"implementation": "fused", "out": 1e-7}\n{"impl', ["stopped after 90 s"]
        return in_this_process(command, seconds)

    some = {name: report.PARTS[name] for name in ("machine", "implementations", "times")}
    monkeypatch.setattr(report, "PARTS", some)
    monkeypatch.setattr(report, "_output", output)
    text, parts = written(tmp_path, "--quick")
    assert parts[ERRORS]["rows"] == [{"implementation": "fused", "out": 1e-7}]
    assert "| fused | 1e-07 |\n\n- stopped after 90 s\n\n## Times of attention" in text
    assert "- fused, float32: RuntimeError: there is no GPU\n" in text


@pytest.mark.usefixtures("plain")
def test_nothing_begins_after_the_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "LAST_START", -1)
    monkeypatch.setattr(report, "_output", None)
    assert main(["gpu-report", "--out", str(tmp_path)]) == 0
    text = tmp_path.joinpath("gpu_an_unknown_gpu.md").read_text(encoding="utf-8")
    assert text.count("- left out: 0 s had passed") == len(TITLES)


@pytest.mark.usefixtures("plain")
def test_the_tests_are_counted_and_failures_are_listed():
    rows, problems = report._tests(100)
    assert rows == [{"result": "failed", "tests": 1}, {"result": "passed", "tests": 2}]
    assert problems == ["FAILED tests/a.py::test_b[cupy] - ValueError: it FAILED | no"]


@pytest.mark.thorough
def test_a_process_that_hangs_or_ends_badly_keeps_its_rows():
    code = "import sys, time; print('row', flush=True); print('minimha: why', file=sys.stderr); "
    for ending, seconds, problems in (
        ("time.sleep(600)", 5, ["stopped after 5 s"]),  # a busy machine takes a while to begin
        ("sys.exit('bad luck')", 300, ["minimha: why", "exit code 1: bad luck"]),
    ):
        found = report._output([sys.executable, "-S", "-c", code + ending], seconds)
        assert found == ("row\n", problems)


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["gpu-report", "--out", str(tmp_path / "new")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "cupy is not installed" in shown.err
    assert not (tmp_path / "new").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("card")
def test_tiles_and_pytorch_are_measured_too(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(measuring, "TORCH_DEVICE", "cpu")
    for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 2**20)
    monkeypatch.setattr(ways, "_failed", {("fused", "cupy"): "it needs a compiler"})
    monkeypatch.setattr(tiled, "_machine_obstacle", lambda: None)
    text, parts = written(tmp_path, "--quick")
    good = [row for row in parts["Times of attention"]["rows"] if "failed" not in row]
    assert {row["implementation"] for row in good} >= {"reference", "tiled", "torch", "torch math"}
    assert "| forward, backward | float32 | 32 | causal |" in text
    errors = [row for row in parts[ERRORS]["rows"] if "failed" not in row]
    assert {row["implementation"] for row in errors} == {"reference", "tiled", "auto"}
    assert {row["runs"] for row in errors if row["implementation"] == "auto"} == {"tiled"}
    torch_step, our_step = parts["A training step"]["rows"]
    for loss in ("first loss", "last loss"):
        np.testing.assert_allclose(our_step[loss], torch_step[loss], rtol=1e-5)
    assert our_step["last loss"] < our_step["first loss"]

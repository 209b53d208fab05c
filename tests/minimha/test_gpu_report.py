"""The report on a GPU, written on a stand-in for CuPy: every line runs, and all times are the same."""

import contextlib
import importlib.util
import io
import json
import math
import re
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import cupy_on_numpy
import numpy as np
import pytest

from minimha.__main__ import main
from minimha.attention import dispatch
from minimha.gpu_report import attention, generation, measuring, report, training_step
from minimha.kernels import attention as ways
from minimha.kernels.gpu import cuda, fused, tiled

SMALL = measuring.Sizes(
    length=40, lengths=(32,), batch_heads=2, widths=(64, 128),
    layers=1, width=64, context=16, batch=2, steps=2, tokens=20,
)  # fmt: skip
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
    return SimpleNamespace(
        gpu_times=np.full((1, n_repeat), MS / 1e3), cpu_times=np.full(n_repeat, MS / 2e3)
    )


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
        monkeypatch.setattr(report, "QUICK", SMALL)
        yield


@pytest.fixture
def plain(card, monkeypatch):
    """A card without kernels and without PyTorch: the report takes a moment."""
    monkeypatch.setattr(ways, "_failed", {})
    monkeypatch.setattr(fused, "_launch", raising(RuntimeError("no CUDA kernels")))
    monkeypatch.setattr(tiled, "_machine_obstacle", lambda: "there are no tiles")
    monkeypatch.setattr(cuda, "REALS", {})  # supports no dtype: a compiler would take a second
    monkeypatch.setitem(sys.modules, "torch", None)


def raising(error):
    """A function that raises this error."""

    def function(*_, **__):
        raise error

    return function


@pytest.fixture
def tiles(plain, monkeypatch):
    """A GPU that supports tiles. `tiles.refuse(kernel, q)` decides which launches fail, as if the
    compiler had crashed with signal 11."""
    monkeypatch.setattr(tiled, "_machine_obstacle", lambda: None)
    kernels, launch, stream = cupy_on_numpy.tiles_on_numpy()
    switch = SimpleNamespace(refuse=lambda kernel, q: False)

    def launch_or_fail(stream, grid, kernel, arguments):
        if switch.refuse(kernel.__name__, arguments[0]):
            raise CompilerExecutionError("Return code -11\nplease submit a bug report")
        launch(stream, grid, kernel, arguments)

    runner = tiled.Runner(kernels, launch_or_fail, stream)
    monkeypatch.setattr(tiled, "_on_gpu", lambda: runner)
    return switch


class TileError(Exception):
    """Stands for the base class of cuTile's errors."""


class CompilerExecutionError(TileError):
    """Stands for cuTile's error when its compiler fails."""


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
    assert re.search(r"\| auto \| float32 \| 64 \| none \| .* \| reference \|", text)
    assert "- tiled, float32, D = 128: there are no tiles\n" in text
    assert "| forward | float32 | 64 | 32 | none | 60 | failed |" in text
    assert "- torch: ModuleNotFoundError: import of torch halted" in text
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
    assert {row["D"] for row in good} == {64, 128}
    assert {row["runs"] for row in good} == {"reference"}
    for row in good:
        eps = EPS[row["dtype"]]
        assert all(eps / 100 < row[what] < 20 * eps for what in ("out", "dq", "dk", "dv"))


@pytest.mark.usefixtures("plain")
def test_speeds_count_the_visible_pairs():
    rows = [row for row in measured("times") if "failed" not in row]
    assert len(rows) == 2 * len(EPS) * 2 * 2  # passes, dtypes, widths, masks: of the reference
    for row in rows:
        work = 4 * 2 * 32**2 * row["D"] / (1 + (row["mask"] == "causal"))
        work *= 3.5 if "backward" in row["pass"] else 1
        np.testing.assert_allclose(row["TFLOP/s"], work / MS / 1e9)
        assert (row["ms"], row["MiB"]) == (MS, 3)


@pytest.mark.usefixtures("plain")
def test_the_row_of_a_failed_kernel_has_no_results_of_another_implementation():
    pytest.importorskip("ml_dtypes")  # some rows are in bfloat16
    for part in ("implementations", "times"):
        rows = [row for row in measured(part) if row["implementation"] == "fused"]
        assert len(rows) >= 12
        assert all({"out", "ms"}.isdisjoint(row) for row in rows)
        assert {row["failed"] for row in rows} == {"it failed: RuntimeError: no CUDA kernels"}


def test_auto_reports_forward_and_backward_of_the_same_implementation(tiles):
    tiles.refuse = lambda kernel, q: kernel.startswith("backward")
    rows = {(r["implementation"], r["dtype"], r["D"], r["mask"]): r for r in one_dtype()}
    assert len(rows) == 4 * 2 * 2
    for (name, *rest), row in rows.items():
        if name == "auto":
            reference = rows["reference", *rest]
            assert row["runs"] == "reference"
            assert all(row[what] == reference[what] for what in ("out", "dq", "dk", "dv"))
        if name == "tiled":
            assert "out" not in row
            assert row["failed"].startswith(
                "it could not be compiled: CompilerExecutionError: Return code -11 please submit"
            )


def one_dtype():
    """The rows of the part "implementations" for float32."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "DTYPES", ("float32",))
        return measured("implementations")


def test_a_dtype_or_width_that_does_not_compile_does_not_stop_the_others(tiles, monkeypatch):
    monkeypatch.setattr(attention, "DTYPES", ("float16", "float32"))
    tiles.refuse = lambda kernel, q: (str(q.dtype), q.shape[-1]) == ("float16", 64)
    for part in ("implementations", "times"):
        rows = [row for row in measured(part) if row["implementation"] == "tiled"]
        failed = {(row["dtype"], row["D"]) for row in rows if "failed" in row}
        good = {(row["dtype"], row["D"]) for row in rows if "failed" not in row}
        assert failed == {("float16", 64)}
        assert good == {("float16", 128), ("float32", 64), ("float32", 128)}


def test_a_step_and_generation_say_which_attention_they_used(tiles, monkeypatch):
    pytest.importorskip("ml_dtypes")  # some rows are in bfloat16
    monkeypatch.setattr(dispatch, "_ENOUGH", 10 * 128)  # kernels from 10 keys on
    for part, fell_back, name in (
        ("training-step", False, "tiled"), ("training-step", True, "reference"),
        ("generation", False, "reference, tiled"), ("generation", True, "reference"),
    ):  # fmt: skip
        ways.forget_failures()
        tiles.refuse = lambda kernel, q, fell_back=fell_back: fell_back
        *_, row = measured(part)
        assert row["library"] in ("minimha, bfloat16", "cupy")
        assert row["attention"] == name, (part, fell_back)


@pytest.mark.usefixtures("plain")
def test_a_step_has_the_time_of_the_gpu_and_of_the_host():
    pytest.importorskip("ml_dtypes")  # some rows are in bfloat16
    rows = {row["library"]: row for row in measured("training-step")}
    assert rows["torch"]["failed"].startswith("ModuleNotFoundError")
    for name in ("minimha", "minimha, bfloat16"):
        assert (rows[name]["ms"], rows[name]["host, ms"]) == (MS, MS / 2)
        assert rows[name]["last loss"] < rows[name]["first loss"]
    apart = rows["minimha, bfloat16"]["first loss"] - rows["minimha"]["first loss"]
    assert 0 < abs(apart) < 0.01  # from the same weights, with products that are rounded


@pytest.mark.usefixtures("plain")
def test_tokens_are_counted_on_the_gpu_and_on_the_cpu(monkeypatch):
    for seconds, count in ((600.0, 20), (0.0, 1)):
        monkeypatch.setattr(generation, "LONGEST", seconds)
        rows = measured("generation")
        assert [row["library"] for row in rows] == ["numpy", "cupy"]
        for row in rows:
            assert row["tokens"] == count
            np.testing.assert_allclose(row["tokens/s"], count / row["seconds"])


def profiler(events):
    """A stand-in for PyTorch's profiler, which writes its events in Chrome's trace format."""
    written = json.dumps({"traceEvents": events})
    seen = SimpleNamespace(export_chrome_trace=lambda path: Path(path).write_text(written, "utf-8"))
    return SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CUDA="CUDA"),
        profile=lambda activities: contextlib.nullcontext(seen),
    )


@pytest.fixture
def profiled(plain, monkeypatch):
    """A function that sets the events that PyTorch's profiler sees."""
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(measuring, "torch_without_tf32", lambda: torch)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(training_step, "LIBRARIES", {"minimha": training_step.by_minimha})
    return lambda events: monkeypatch.setitem(sys.modules, "torch.profiler", profiler(events))


def launches(name, count, us, cat="kernel"):
    return [{"ph": "X", "cat": cat, "name": name, "ts": 0, "dur": us}] * count


def test_the_kernels_of_a_step_are_listed_by_time(profiled, monkeypatch):
    monkeypatch.setattr(training_step, "MOST_KERNELS", 2)
    profiled([
        {"ph": "M", "name": "process_name"},
        *launches("cupy_add", 4, 1000), *launches("gemm", 2, 7000), *launches("exp", 6, 100),
        *launches("fill", 2, 200), *launches("Memcpy DtoH", 2, 9, "gpu_memcpy"),
        *launches("cudaLaunchKernel", 9, 99, "cuda_runtime"),
    ])  # fmt: skip
    rows = measured("kernels")  # of 2 steps
    assert [(row["kernel"], row["launches a step"]) for row in rows] == [
        ("all kernels", 7), ("gemm", 1), ("cupy_add", 2), ("2 others", 4),
        ("copies and fills of memory", 1),
    ]  # fmt: skip
    np.testing.assert_allclose([row["ms a step"] for row in rows[:-1]], [9.5, 7, 2, 0.5])
    np.testing.assert_allclose(sum(row["% of time"] for row in rows[1:-1]), 100)


def test_a_profiler_that_sees_no_kernel_is_reported_as_a_failure(profiled):
    profiled(launches("cudaLaunchKernel", 9, 99, "cuda_runtime"))
    (row,) = measured("kernels")
    assert row["failed"] == "RuntimeError: the profiler saw no kernel"


def test_the_error_of_a_pytorch_backend_says_why_it_refused():
    def refuse():
        for text in (
            "Memory Efficient attention has been runtime disabled.",
            "Flash attention kernel not used because:",
            "Expected query to be of dtype: {Half, BFloat16}.",
        ):
            warnings.warn(f"{text} (Triggered internally at sdp_utils.cpp:1.)", stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    with pytest.raises(RuntimeError) as caught, attention.refusals_explained():
        refuse()
    assert str(caught.value) == (
        "No available kernel. Aborting execution. Expected query to be of dtype: {Half, BFloat16}."
    )


def test_large_numbers_and_long_names_fit_into_a_table():
    name = "void kernel<" + "x" * 1000
    table = measuring.markdown([{"kernel": name, "launches": 1064.0, "ms": 12.345}])
    assert table.splitlines()[-1] == f"| {name[:90]}… | 1064 | 12.3 |"


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
    assert "- tiled, float32, D = 64: there are no tiles\n" in text


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
    monkeypatch.setattr(ways, "_failed", {})
    monkeypatch.setattr(fused, "_launch", raising(RuntimeError("it needs a compiler")))
    monkeypatch.setattr(tiled, "_machine_obstacle", lambda: None)
    text, parts = written(tmp_path, "--quick")
    good = [row for row in parts["Times of attention"]["rows"] if "failed" not in row]
    assert {row["implementation"] for row in good} >= {"reference", "tiled", "torch", "torch math"}
    assert "| forward, backward | float32 | 64 | 32 | causal |" in text
    errors = [row for row in parts[ERRORS]["rows"] if "failed" not in row]
    assert {row["implementation"] for row in errors} == {"reference", "tiled", "auto"}
    assert {row["runs"] for row in errors if row["implementation"] == "auto"} == {"tiled"}
    steps = {row["library"]: row for row in parts["A training step"]["rows"]}
    for kind, rtol in (("", 1e-5), (", bfloat16", 1e-2)):
        for loss in ("first loss", "last loss"):
            ours, theirs = steps[f"minimha{kind}"][loss], steps[f"torch{kind}"][loss]
            np.testing.assert_allclose(ours, theirs, rtol=rtol)
    assert steps["minimha"]["last loss"] < steps["minimha"]["first loss"]

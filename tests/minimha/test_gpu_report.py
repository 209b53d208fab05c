"""The report on a GPU, written on a stand-in for CuPy: every line runs, though no time means anything."""

import json
import sys
import time
from types import SimpleNamespace

import cupy_on_numpy
import numpy as np
import pytest

from minimha.__main__ import main
from minimha.gpu_report import report as gpu_report
from minimha.kernels.gpu import fused, tiled


class Event:
    """A CUDA event, by the clock of the host."""

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass


@pytest.fixture
def card(monkeypatch):
    """A machine with a GPU, as far as the report looks at it."""
    properties = {"name": b"Stand-in 1", "major": 9, "minor": 0, "totalGlobalMem": 2**33}
    with cupy_on_numpy.installed():
        import cupy

        pool = SimpleNamespace(free_all_blocks=lambda: None, total_bytes=lambda: 3 * 2**20)
        monkeypatch.setattr(cupy, "get_default_memory_pool", lambda: pool)
        for name, value in {
            "Event": Event,
            "get_elapsed_time": lambda a, b: 1e3 * (b.time - a.time),
        }.items():
            monkeypatch.setattr(cupy.cuda, name, value, raising=False)
        for name, value in {
            "getDeviceProperties": lambda _: properties,
            "driverGetVersion": lambda: 13010,
        }.items():
            monkeypatch.setattr(cupy.cuda.runtime, name, value, raising=False)
        yield


def report(folder, *options):
    code = main(["gpu-report", "--out", str(folder), "--quick", *options])
    files = {path.suffix: path.read_text(encoding="utf-8") for path in folder.glob("gpu-*")}
    return code, files[".md"], json.loads(files[".json"])


@pytest.fixture
def no_kernels(monkeypatch):
    """The stand-in runs no kernels."""
    for module in (fused, tiled):
        monkeypatch.setattr(module, "obstacle", lambda _: "there is no GPU")
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("card", "no_kernels")
def test_every_part_is_reported(tmp_path):
    code, text, data = report(tmp_path)
    parts = {part["title"]: part["rows"] for part in data["parts"]}
    assert code == 0
    assert data["card"] == "Stand-in 1"
    assert list(parts) == [
        "The machine", "The implementations", "Errors against float64", "Times of attention",
        "A training step", "The tests on CuPy",
    ]  # fmt: skip
    assert "| CUDA version of the driver | 13.1 |" in text
    assert ["float32", "tiled", "reference", "there is no GPU"] in parts["The implementations"]
    found = parts["Errors against float64"]
    assert {tuple(row[:3]) for row in found} == {
        (dtype, "reference", mask)
        for dtype in ("float32", "float16")
        for mask in ("none", "causal")
    }
    for dtype, _, _, *errors in found:
        eps = float(np.finfo(dtype).eps)
        assert all(eps / 100 < error < 20 * eps for error in errors)
    for _, n, mask, name, *cells in parts["Times of attention"]:
        if name.startswith("torch"):
            assert cells[0].startswith("failed: ModuleNotFoundError")
        else:
            forward, both, first, second, memory = cells
            flops = 4 * 4 * n**2 * 64 / (1 + (mask == "causal"))
            np.testing.assert_allclose(
                [first, second], [flops / forward / 1e9, 3.5 * flops / both / 1e9]
            )
            assert memory == "3"
    assert parts["A training step"][0][1] > 0
    assert not parts["The tests on CuPy"]


@pytest.mark.usefixtures("card", "no_kernels")
def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("no | luck\nat all")

    monkeypatch.setattr(gpu_report, "PARTS", (gpu_report.machine, broken, gpu_report.suite))
    _, text, data = report(tmp_path)
    assert "## Broken\n\nfailed: RuntimeError: no / luck\n" in text
    assert [part["title"] for part in data["parts"]] == [
        "The machine",
        "Broken",
        "The tests on CuPy",
    ]


@pytest.mark.usefixtures("card", "no_kernels")
def test_nothing_begins_after_the_time_is_up(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_report, "BUDGET", -1)
    _, text, _ = report(tmp_path)
    assert text.count("-1 s had passed before it began") == len(gpu_report.PARTS)


def test_the_suite_runs_in_a_process_of_its_own(monkeypatch):
    setting = gpu_report.Setting(time.perf_counter() + 100)
    commands = []

    def run(command, **settings):
        commands.append((command, settings["timeout"]))
        return SimpleNamespace(
            stdout="...\nFAILED tests/a.py::b - c | d\n== 1 failed, 2 passed ==\n"
        )

    monkeypatch.setattr(gpu_report.subprocess, "run", run)
    part = gpu_report.suite(setting)
    assert part.about == "`pytest --array-backend cupy`: 1 failed."
    assert part.rows == [("FAILED tests/a.py::b - c / d",), ("1 failed, 2 passed",)]
    ((command, limit),) = commands
    assert command[-3:-1] == ["--array-backend", "cupy"]
    assert 90 < limit <= 100


def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["gpu-report", "--out", str(tmp_path / "new")]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert "cupy is not installed" in shown.err
    assert not (tmp_path / "new").exists()

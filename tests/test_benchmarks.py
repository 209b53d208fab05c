"""The benchmarks run, with whatever peers are installed."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import compiled_for_gpu as compiled
import pytest

from minimha.kernels.gpu import tiled

pytestmark = pytest.mark.thorough
BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def run(tmp_path):
    """Run a quick benchmark, which saves its output, and return the output and table rows."""

    def run(name, *options):
        saved = tmp_path / "table.md"
        command = [sys.executable, BENCHMARKS / name, "--quick", "--save", saved, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert saved.read_text(encoding="utf-8").strip() == done.stdout.strip()
        rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line[:1] == "|"]
        return done.stdout, [[cell.strip() for cell in row] for row in rows]

    return run


def test_the_engine_benchmark_runs(run):
    _, rows = run("engine.py", "add", "softmax")
    assert [row[0] for row in rows] == ["step", "---", "add", "softmax", "**median**"]


def test_the_import_benchmark_runs(run):
    _, rows = run("importing.py")
    assert [row[0] for row in rows[2:]] == ["numpy", "minimha", "minimha / numpy", "bound"]


def test_the_loading_benchmark_runs(run):
    pytest.importorskip("ml_dtypes")
    _, rows = run("loading.py")
    assert [row[1] for row in rows[2:]] == ["float32", "bfloat16", ""]


def test_the_benchmark_of_the_forms_runs(run):
    text, rows = run("forms.py")
    names = [row[0] for row in rows]
    assert names[:2] == ["projections", "---"]
    assert names[4:6] == ["attention", "---"]
    assert len(names) == 8
    assert "Predicted correctly:" in text  # the share needs a quiet machine and all cells


def test_the_benchmark_of_gradient_checks_runs(run):
    _, rows = run("gradcheck.py")
    ours = next(row for row in rows if row[0] == "mh.gradcheck")
    assert max(float(cell) for cell in ours[1:3]) <= 1e-9


def test_the_benchmark_of_a_training_step_runs(run):
    text, rows = run("training_step.py")
    assert rows[2][0] == "minimha"
    steps = {"linear", "gelu", "layer_norm", "scaled_dot_product_attention", "AdamW"}
    assert steps <= {row[0] for row in rows}
    assert "Ratio to PyTorch's time:" in text or "PyTorch" not in rows[3][0]


def test_the_benchmark_of_equal_bits_runs(run):
    _, rows = run("same_bits.py")
    inside = [
        row for row in rows if row[0].endswith("`batch_invariant`") and row[1] in ("yes", "no")
    ]
    assert {cell for row in inside if "four steps" not in row[0] for cell in row[1:]} == {"yes"}
    assert any("no" in row for row in rows)


def test_two_versions_take_turns(run):
    _, rows = run("versions.py", BENCHMARKS.parent)
    assert rows[0] == ["", "this version", "the other", "ratio"]
    assert [row[0].partition(",")[0] for row in rows[2:]] == [
        "training step",
        "attention on arrays",
        "attention on Tensors",
    ]


def test_a_layer_and_a_training_step_take_few_calls():
    command = [sys.executable, BENCHMARKS / "calls.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    layer, step = (list(map(int, re.findall(r"\d+", line))) for line in done.stdout.splitlines())
    assert layer[0] <= 16  # files
    assert layer[-1] <= 400  # calls
    assert step[-1] <= 2400


def test_the_benchmark_of_attention_runs(run, tmp_path):
    _, rows = run("attention.py")
    torch = importlib.util.find_spec("torch") is not None
    header = next(k for k, row in enumerate(rows) if "loop" in row)
    cells = dict(zip(rows[header], rows[header + 2], strict=True))
    wanted = {"loop", "reference", "fused", "tiled", "microkernel"} | ({"auto"} if torch else set())
    assert wanted <= {name for name, cell in cells.items() if "(" in cell}
    windows = [row for row in rows if row[:2] == ["forward", "window"]]
    assert [row[2] for row in windows] == ["128", "512"] * 2  # on two threads, and on one
    assert all(("(" in row[3]) == torch for row in windows)
    assert tmp_path.joinpath("table.png").exists() == torch


def test_the_benchmark_of_nanogpt_s_recipe_runs(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    _, rows = run("recipe.py", "--text", text)
    assert rows[2][0] == "minimha"
    assert abs(float(rows[2][2]) - 3.3) < 0.1  # about log 28 after two steps


def test_the_benchmark_of_the_encoder_decoder_runs(run):
    text, rows = run("encoder_decoder.py")
    assert rows[0] == ["seed", "time, s", "copy", "reverse", "add"]
    assert [cell.partition(" of ")[2] for cell in rows[2][2:4]] == ["400", "400"]
    assert "the bound 120" in text


def test_the_benchmark_of_generation_runs(run):
    _, rows = run("generation.py")
    assert [row[0] for row in rows[2:]] == ["with the cache", "without"]
    cached, whole = (float(row[-2]) for row in rows[2:])  # token 256, ms
    assert cached < whole


def test_the_benchmark_of_tokens_runs(run):
    pytest.importorskip("ml_dtypes")
    _, rows = run("tokens.py")
    assert [row[0] for row in rows[2:6]] == ["a token", "a prompt"] + [
        f"a token, {kind}" for kind in ("bfloat16", "int8")
    ]
    token, prompt = (float(row[1].split()[0]) for row in rows[2:4])  # ms
    assert token < prompt
    wide, half, quarter = (float(row[1]) for row in rows[-3:])  # MB
    assert half / wide < 0.55
    assert quarter / wide < 0.3


def test_the_benchmark_of_linear_attention_runs(run):
    text, rows = run("linear_attention.py")
    assert [row[0] for row in rows[2:4]] == ["256", "512"]
    assert "In at least three quarters of the turns, linear attention is" in text
    kernels = [row[0] for row in rows if len(row) == 4 and "(" in row[1]]
    assert kernels == ["linear attention", "gated delta rule"]


def test_the_benchmark_of_speculative_decoding_runs(run):
    _, rows = run("speculation.py")
    assert [row[1:3] for row in rows[2:]] == [[t, k] for t in ("1.0", "0.3") for k in "124"]
    accepted = [int(row[3].removesuffix("%")) for row in rows[2:]]
    assert min(accepted[:3]) > max(accepted[3:])  # they agree less at a low temperature


def test_the_benchmark_of_data_parallel_training_runs(run):
    pytest.importorskip("mpi4py")
    _, rows = run("data_parallel.py")
    assert [row[0] for row in rows[2:]] == ["1 process, 2 threads", "2 ranks, 1 thread each"]
    assert [int(row[2]) > 0 for row in rows[2:]] == [False, True]  # kB sent


def test_the_simulation_of_many_machines_runs(run):
    text, rows = run("many_machines.py")
    assert rows[-1][0] == "1,048,576"
    assert rows[-1][-1].startswith("1,024: ")  # the ring uses all ranks
    assert "**Simulated**, not measured" in text


MANY_MACHINES = (BENCHMARKS.parent / "docs" / "many-machines-costs.md").read_text(encoding="utf-8")


def test_the_page_about_many_machines_is_what_the_simulation_prints():
    command = [sys.executable, BENCHMARKS / "many_machines.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == MANY_MACHINES.replace("(many-machines-costs.png)", "()")


def test_what_the_page_about_many_machines_says_is_in_its_tables():
    found = {}  # the total and the time for sending, by T or ranks, and method
    for line in MANY_MACHINES.splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.split("|")[1:-1]]
        if cells and cells[0].isdigit():
            times = [re.search(r"([\d.]+) \(([\d.]+)\)$", cell) for cell in cells[-4:]]
            found[int(cells[0])] = {  # T is 4,096 and more, ranks are fewer
                way: (float(x[1]), float(x[2]))
                for way, x in zip(("data", "heads", "ulysses", "ring"), times, strict=True)
                if x
            }
    by_ranks = {n: times for n, times in found.items() if n <= 1024}
    for n in (2, 4, 8, 16, 32):  # there is a sequence for each rank
        assert min(by_ranks[n], key=by_ranks[n].get) == "data"
    for n in (2, 4, 8):
        assert sorted(by_ranks[n], key=by_ranks[n].get)[1] == "ulysses"
        assert (by_ranks[n]["ulysses"][1] < by_ranks[n]["ring"][1]) == (n >= 4)
    assert by_ranks[2]["ulysses"][1] > by_ranks[4]["ulysses"][1] > by_ranks[8]["ulysses"][1]
    ring = [times["ring"][1] for times in by_ranks.values()]
    assert ring == sorted(ring)
    assert by_ranks[64]["ring"] > by_ranks[32]["data"] > by_ranks[128]["ring"]
    for t in found.keys() - by_ranks.keys():
        assert min(found[t], key=found[t].get) == ("data" if t <= 65_536 else "ring")


@pytest.fixture
def tileiras():
    """The compiler of tiles, and the program that reads registers."""
    pytest.importorskip("cuda.tile")
    try:
        for program in ("tileiras", "cuobjdump"):
            compiled.nvidia(program)
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("tileiras")
def test_the_registers_of_kernels_for_gpus_are_counted(run):
    _, rows = run("registers.py")
    assert [row[:3] for row in rows[2:]] == [
        [kernel, "float16", "64"] for kernel in ("forward", "backward_query", "backward_key")
    ]
    registers = [int(cell.strip("*").partition(",")[0]) for row in rows[2:] for cell in row[4:]]
    assert len(registers) == 9
    assert all(32 < n <= 255 for n in registers)
    assert any(cell.startswith("**") for row in rows[2:] for cell in row[4:])  # a size in use


def test_the_sizes_in_use_spill_as_the_page_about_registers_says(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    registers = importlib.import_module("registers")
    page = (BENCHMARKS.parent / "docs" / "measured" / "registers.md").read_text(encoding="utf-8")
    cells = [[x.strip() for x in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = [row for row in cells if row and row[0] in registers.KERNELS]
    assert f"\n\n{registers.exceptions(rows)}\n\n" in page
    for kernel, dtype, width, size, _, on_90, _ in rows:
        sizes = tiled.TILES[kernel, registers.BYTES[dtype], int(width)]
        m, n = map(int, size.split(" × "))
        measured = (dtype != "float32" and width != "256") or (kernel, width) == ("forward", "64")
        if (m, n) == sizes.small or ((m, n) == sizes.large and not measured):
            assert registers.spilled(on_90) <= 8


@pytest.mark.usefixtures("tileiras")
@pytest.mark.parametrize("compiler", ["tileiras", "false"])
def test_a_kernel_that_does_not_compile_is_reported(compiler, monkeypatch, capsys):
    monkeypatch.syspath_prepend(BENCHMARKS)
    registers = importlib.import_module("registers")
    if compiler == "false":
        monkeypatch.setattr(compiled, "nvidia", lambda program: compiler)
    monkeypatch.setattr(registers, "CAPABILITIES", {"sm_90": 90})
    failed = registers.compile_all([("float16", compiled.COMMON[0], compiled.Options())])
    lines = capsys.readouterr().out.splitlines()
    assert failed == (3 if compiler == "false" else 0)
    assert len(lines) == failed + 1
    assert lines[-1] == f"3 compiled, {failed} failed"


@pytest.mark.skipif(sys.platform == "win32", reason="grading needs Linux or macOS")
def test_the_benchmark_of_grading_runs(run):
    _, rows = run("grading.py")
    students, answers, full = (int(cell) for cell in rows[2][:3])
    assert (students, answers) == (20, 80)
    assert 40 < full < 65  # one answer in three is wrong

"""A stopped run continues bit for bit; damaged checkpoints and those of other runs are refused."""

import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from layers import same_bits

import minimha as mh
from minimha import interchange, training

TOKENS = np.random.default_rng(0).integers(0, 7, 100)


def run(*, tokens=TOKENS, steps=6, batch=3, lr=0.05, seed=0, **sizes):
    sizes = {"context": 4, "d_model": 8, "num_layers": 1, "dropout": 0.2} | sizes
    model = mh.GPT(7, num_heads=2, tie=True, **sizes)
    return training.Training(model, tokens, steps=steps, batch=batch, lr=lr, seed=seed)


def weights(a_run):
    return {name: x.tobytes() for name, x in interchange.state(a_run.model).items()}


def advance(a_run, count):
    for _ in range(count):
        next(a_run)
    return a_run


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.safetensors"


@pytest.fixture
def twice(path):
    """The path of a checkpoint after step 2; the one after step 1 was there before."""
    a_run = run()
    for _ in range(2):
        advance(a_run, 1).save(path)
    return path


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_a_resumed_run_ends_with_the_same_weights_bit_for_bit(stop, path):
    expected = weights(advance(run(), 6))
    advance(run(), stop).save(path)
    again = run()
    again.resume(path)
    assert again.step == stop
    assert len(list(again)) == 6 - stop
    assert weights(again) == expected
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_checkpoint_from_before_the_precision_could_be_chosen_has_float32(path):
    expected = weights(advance(run(), 3))
    earlier = advance(run(), 2)
    del earlier.settings["precision"]
    earlier.save(path)
    again = run()
    again.resume(path)
    assert weights(advance(again, 1)) == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_resumed_run_in_16_bits_ends_with_the_same_bits(dtype, path):
    """Those of the weights and of the optimiser, which holds digits that the weights lack."""
    pytest.importorskip("ml_dtypes" if dtype == "bfloat16" else "numpy")  # it adds the dtype
    expected = advance(run(dtype=dtype, lr=1e-4), 6).state()
    advance(run(dtype=dtype, lr=1e-4), 4).save(path)
    again = run(dtype=dtype, lr=1e-4)
    again.resume(path)
    same_bits(advance(again, 2).state(), expected)
    assert again.model.tokens.table.dtype == dtype


def test_a_resumed_run_in_bfloat16_of_torch_ends_with_the_same_bits(path):
    torch = pytest.importorskip("torch")

    def of_torch():
        a_run = run(dropout=0.0)
        model = a_run.model.to("torch")
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16)
        return training.Training(model, TOKENS, steps=6, batch=3, lr=1e-4)

    expected = advance(of_torch(), 6).state()
    advance(of_torch(), 4).save(path)
    again = of_torch()
    again.resume(path)
    same_bits(advance(again, 2).state(), expected)
    assert {p.dtype for p in again.model.parameters()} == {torch.bfloat16}


def cut(content):
    return content[: len(content) // 2]


def flipped(content, place=-1000):
    content = bytearray(content)
    content[place] ^= 1
    return content


@pytest.mark.parametrize("damage", [cut, flipped, lambda content: b""])
def test_a_damaged_checkpoint_is_detected_and_the_previous_one_used(damage, twice):
    twice.write_bytes(damage(twice.read_bytes()))
    a_run = run()
    with pytest.warns(UserWarning, match="; continuing from checkpoint-previous") as caught:
        a_run.resume(twice)
    assert str(twice) in str(caught[0].message)
    assert caught[0].filename == __file__
    assert a_run.step == 1
    assert weights(advance(a_run, 5)) == weights(advance(run(), 6))


@pytest.mark.filterwarnings("ignore:.*continuing from checkpoint-previous")
def test_a_damaged_checkpoint_does_not_replace_the_previous_one(twice):
    twice.write_bytes(cut(twice.read_bytes()))
    a_run = run()
    a_run.resume(twice)
    advance(a_run, 3).save(twice)
    twice.write_bytes(flipped(twice.read_bytes()))
    a_run.resume(twice)
    assert a_run.step == 1


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*continuing from checkpoint-previous")
def test_no_flipped_bit_and_no_cut_goes_unnoticed(twice):
    content, states = twice.read_bytes(), {}
    for step in (1, 2):
        states[step] = weights(advance(run(), step))
    places = [*range(0, 3000, 17), *range(3000, len(content), 251)]
    assert len(content) > 5000
    for place in places:
        for wrong in (flipped(content, place), content[:place]):
            twice.write_bytes(wrong)
            a_run = run()
            a_run.resume(twice)
            assert weights(a_run) == states[a_run.step]


def test_without_an_undamaged_checkpoint_there_is_an_error(path):
    with pytest.raises(FileNotFoundError, match=f"there is no checkpoint {path}"):
        run().resume(path)
    a_run = run()
    interchange.save(a_run.model, path)
    with pytest.raises(ValueError, match="is not a checkpoint: it has no checksum"):
        a_run.resume(path)
    for file in (path, path.with_stem("checkpoint-previous")):
        a_run.save(file)
        file.write_bytes(flipped(file.read_bytes()))
    with pytest.raises(
        ValueError, match=r"checkpoint\.\S+ is damaged.*; .*-previous\S+ is damaged"
    ):
        a_run.resume(path)


def test_a_checkpoint_of_another_run_is_refused_and_every_difference_is_named(twice):
    other = run(tokens=TOKENS[1:], steps=7, lr=0.1, seed=3, dropout=0.1, num_layers=2)
    before = weights(other)
    with pytest.raises(ValueError, match="is a checkpoint of another run: ") as failure:
        other.resume(twice)
    message = str(failure.value)
    assert "\n" not in message
    named = [part.split(" is ")[0] for part in message.split("run: ")[1].split("; ")]
    assert named == [
        "steps", "lr", "min_lr", "seed", "text", "model.dropout", "model.num_layers"
    ]  # fmt: skip
    assert "lr is 0.05 in the checkpoint, but 0.1 here" in message
    assert (weights(other), other.step) == (before, 0)


def test_a_model_without_settings_is_known_by_its_parameters(path):
    class Bigrams(mh.Module):
        context = 4

        def __init__(self, count):
            self.table = mh.Embedding(7, count)

        def __call__(self, tokens, rng=None):
            return self.table(tokens)

    settings = {"steps": 3, "batch": 2, "lr": 0.1}
    a_run = advance(training.Training(Bigrams(7), TOKENS, **settings), 2)
    a_run.save(path)
    again = training.Training(Bigrams(7), TOKENS, **settings)
    again.resume(path)
    assert weights(again) == weights(a_run)
    expected = (
        r"model\.table\.table is float32 \(7, 7\) in the checkpoint, but float32 \(7, 8\) here$"
    )
    with pytest.raises(ValueError, match=expected):
        training.Training(Bigrams(8), TOKENS, **settings).resume(path)
    with pytest.raises(ValueError, match=r"model\.vocabulary is missing in the checkpoint"):
        run().resume(path)


# Processes that are killed


def train_in_a_process(path, operation):
    """Start a process that saves after every step and kills itself before this file operation of the
    third save."""
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path[:0] = {[str(Path(__file__).parents[k]) for k in (0, 2)]!r}
from test_checkpoint import run

path, operation, a_run = Path({str(path)!r}), {operation}, run()

def kill(event, arguments):
    global operation
    if a_run.step == 3 and event in ("open", "os.rename", "os.remove"):
        operation -= 1
        if operation == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
for loss in a_run:
    a_run.save(path)
    print(a_run.step, flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.thorough
@pytest.mark.this_cpu("its other process does not have the option")
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_a_run_killed_before_any_file_operation_of_a_save_ends_with_the_same_weights(tmp_path):
    expected, killed = weights(advance(run(), 6)), []
    for operation in count(1):
        path = tmp_path / str(operation) / "checkpoint.safetensors"
        path.parent.mkdir()
        with train_in_a_process(path, operation) as process:
            process.stdout.read()
        if not process.returncode:  # a save has fewer operations
            break
        assert process.returncode == -signal.SIGKILL
        a_run = run()
        a_run.resume(path)
        killed.append(a_run.step)
        assert weights(advance(a_run, 6 - a_run.step)) == expected
    assert killed == sorted(killed)
    assert set(killed) == {2, 3}

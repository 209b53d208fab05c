"""The commands `minimha train` and `minimha generate`."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from mutations import STEPS, mutations, refusal

import minimha as mh
from minimha import parallel
from minimha.__main__ import _parser, main
from minimha.training import commands, data, watching

TEXT = "The cat sat on the mat, and the dog sat on the log by the cat.\n" * 9
SMALL = "--layers 1 --heads 2 --width 8 --context 8 --batch 2 --steps 7 --every 3 --dropout 0.1"

THREADS = "--transport threads --ranks"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a text in the file t."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t").write_text(TEXT)
    return tmp_path


def trained(out, *more, small=SMALL):
    return main(["train", "--text", "t", "--out", out, *small.split(), *more])


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def interrupt_at(step, monkeypatch):
    """Press Ctrl-C in this step."""
    watch = watching.watch

    def pressed(run, *arguments, **settings):
        for loss in watch(run, *arguments, **settings):
            if run.step == step:
                signal.raise_signal(signal.SIGINT)
            yield loss

    monkeypatch.setattr(commands.watching, "watch", pressed)


def one_error(code, capsys):
    assert code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("minimha: ")
    assert shown.err.count("\n") == 1
    return shown.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--heads 3", "--width 8 is not a multiple of --heads 3"),
        ("--context 300", "the text has 567 characters: a context of 300 needs at least 602"),
        ("--steps 0", "--steps is 0, but must be an integer of at least 1"),
        ("--dropout 1", "--dropout is 1.0, but must be a number of at least 0 and below 1"),
        ("--text absent", "absent: No such file or directory"),
        ("--backend jax", "--backend is 'jax', but must be 'numpy' or 'array-api-strict' or"),
        ("--resume", "new holds no run to resume: leave out --resume"),
        ("--out t", "t is not an empty folder: choose another --out"),
        ("--out .", ". is not an empty folder: choose another --out"),
        ("--out t/new", "cannot write to t/new: Not a directory"),
        ("--transport threads", "--transport threads needs --parallel WAY and --ranks N"),
        ("--parallel data --ranks 2", "--ranks needs --transport threads; mpiexec -n sets it"),
        (f"{THREADS} 3 --parallel data", "3 ranks need at least 3 sequences, but there are 2"),
        (f"{THREADS} 2 --parallel heads", "dropout works only with the way 'data'"),
        (f"{THREADS} 3 --parallel heads --dropout 0", "3 ranks need at least 3 heads"),
    ],
)
def test_settings_that_do_not_fit_give_one_line_and_leave_no_folder(
    options, message, folder, capsys
):
    before = content(folder)
    assert message in one_error(trained("new", *options.split()), capsys)
    assert content(folder) == before


def opened(*options):
    return commands.Run.of(_parser().parse_args(["train", "--out", "run", *options]))


@pytest.fixture
def begun(folder):
    """A run that was stopped before its first checkpoint."""
    run = opened("--text", "t", *SMALL.split())
    run.begin()
    mh.interchange.save_pretrained(run.training.model, "run")
    return folder / "run"


@pytest.fixture
def stopped(begun):
    """A run that was stopped after its first step."""
    run = opened("--resume")
    next(run.training)
    run.training.save(begun / "checkpoint.safetensors")
    (begun / "losses.csv").write_text("step,training,validation\n1,3.5,\n")
    return begun


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "run already holds a run: add --resume, or choose another --out"),
        (
            "--resume --width 16",
            "the run in run has --width 8, not 16: leave out --width, or start a new",
        ),
        ("--resume --text u", "t, not"),
    ],
)
def test_a_folder_of_another_run_is_refused_and_unchanged(options, message, begun, capsys):
    before = content(begun)
    assert message in one_error(trained("run", *options.split()), capsys)
    assert content(begun) == before


def test_a_run_of_which_only_the_previous_checkpoint_is_left_continues_from_it(stopped):
    weights = mh.interchange.state(opened("--resume").training.model)
    (stopped / "checkpoint.safetensors").rename(stopped / "checkpoint-previous.safetensors")
    with pytest.warns(UserWarning, match="; continuing from checkpoint-previous"):
        run = opened("--resume")
    assert (run.training.step, run.losses.training) == (1, {1: 3.5})
    np.testing.assert_equal(mh.interchange.state(run.training.model), weights)


@STEPS
def test_a_damaged_run_json_is_read_or_refused_by_the_name_of_its_entry(step, stopped):
    for name, value in mutations(stopped / "run.json", step):
        message = refusal(opened, "--resume")
        if not message:
            changes_nothing = (name, value) in (("seed", 0), ("precision", ...))
            assert changes_nothing or name == "every", (name, value)
        elif " is a checkpoint of another run: " not in message:  # as after a valid value
            assert message.startswith("run/run.json"), (name, value)
            assert name in message or (name in ("text", "sha256") and value == "16"), (name, value)


def test_damaged_losses_are_refused_by_the_name_of_their_file(stopped):
    path = stopped / "losses.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("3.5", "3,5,"), encoding="utf-8")
    assert refusal(opened, "--resume").startswith("run/losses.csv: ")


@STEPS
def test_a_damaged_vocabulary_is_refused_by_the_name_of_its_entry(step, begun):
    path = begun / "vocabulary.json"
    for name, value in mutations(path, step):
        message = refusal(commands._model, begun)
        assert str(path) in message, (name, value)
        if value is not ... and name != path.name:
            assert f": entry {name} is " in message, (name, value)


def test_a_vocabulary_of_another_size_than_the_models_is_refused(begun):
    path = begun / "vocabulary.json"
    characters = json.loads(path.read_text())
    for wrong in ([*characters, "é"], characters[1:], [*characters[1:], characters[1]]):
        path.write_text(json.dumps(wrong))
        message = refusal(commands._model, begun)
        size = len(set(wrong))
        assert message.endswith(
            f"{size} different characters, but the vocabulary of the model has {len(characters)}"
        )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("every", ["1", "7"])
def test_a_run_that_diverges_stops_and_says_so(every, capsys):
    """Also when the first step that fails is one after which a sample would be shown."""
    assert trained("run", "--lr", "1e9", "--every", every) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("minimha: training diverged: the loss is nan after step ")
    assert error.endswith("A learning rate lower than 1e+09 usually helps")


def test_a_text_that_changed_since_the_run_began_is_refused(begun, folder, capsys):
    (folder / "t").write_text(TEXT + "more")
    error = one_error(main(["train", "--out", "run", "--resume"]), capsys)
    assert "has changed since the run in run began" in error


def test_a_model_of_characters_continues_a_prompt(begun, capsys):
    assert main(["generate", "run", "--tokens", "20", "--prompt", "The cat"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The cat")
    assert len(text) == len("The cat") + 20 + len("\n")
    assert main(["generate", "run", "--tokens", "20", "--prompt", "The cat", "--no-cache"]) == 0
    assert capsys.readouterr().out == text
    model = mh.interchange.from_pretrained(begun)
    vocabulary = data.CharacterTokenizer(json.loads((begun / "vocabulary.json").read_text()))
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    tokens = mh.generate(model, vocabulary.encode("\n")[None], 20, rng=3, **settings)
    options = ["--temperature", "0.7", "--top-k", "5", "--top-p", "0.9", "--seed", "3"]
    assert main(["generate", "run", "--tokens", "20", *options]) == 0
    assert capsys.readouterr().out == vocabulary.decode(tokens[0]) + "\n"


def test_without_a_prompt_a_model_that_knows_no_line_break_begins_with_its_first_character(
    folder, capsys
):
    (folder / "t").write_text(TEXT.replace("\n", " "))
    assert trained("out") == 0
    capsys.readouterr()
    assert main(["generate", "out", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith(" ")


def test_a_pretrained_model_continues_a_text_or_answers_until_its_stop_token(folder, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(["to be or not"], vocab_size=256)
    folder = Path("pretrained")
    model = mh.GPT(256, context=64, d_model=8, num_heads=2, num_layers=1, rng=2, dtype="float64")
    mh.interchange.save_pretrained(model, folder)
    bpe.save(str(folder / "tokenizer.json"))
    folder.joinpath("chat_template.jinja").write_text("Q: {{ messages[0].content }} A:")
    tokenizer = mh.interchange.PretrainedTokenizer(folder)
    for options, text in (([], "to be"), (["--chat"], "Q: to be A:")):
        known = tokenizer.encode(text)
        tokens = mh.generate(model, known[None], 30, temperature=2.0, rng=1)[0]
        stop = int(tokens[len(known) + 12])
        folder.joinpath("generation_config.json").write_text(json.dumps({"eos_token_id": stop}))
        wanted = mh.generate(model, known[None], 30, temperature=2.0, rng=1, stop=[stop])[0]
        assert len(wanted) < len(tokens)
        command = ["generate", "pretrained", "--tokens", "30", "--prompt", "to be", "--seed", "1"]
        assert main([*command, "--temperature", "2", *options]) == 0
        shown, whole = capsys.readouterr().out, tokenizer.decode(wanted)
        assert shown == (whole.removeprefix(text) if options else whole) + "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("absent", "absent holds no model: make one with minimha train --out absent"),
        ("run --prompt caé", "'é' is not among the"),
        ("run --prompt=", "--prompt must have at least one character"),
        ("run --tokens -1", "--tokens must be at least 0, not -1"),
        ("run --temperature -1", "temperature = -1.0 must be"),
        ("run --seed -1", "--seed must be at least 0, not -1"),
        ("run --chat", "--chat needs a pretrained model: run holds none"),
    ],
)
def test_generate_refuses_in_one_line(options, message, begun, capsys):
    assert message in one_error(main(["generate", *options.split()]), capsys)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "the run in run has saved no model yet: continue it with minimha"),
        ("vocabulary.json", "run holds neither vocabulary.json nor tokenizer.json"),
    ],
)
def test_generate_says_which_file_a_folder_lacks(missing, message, begun, capsys):
    (begun / missing).unlink()
    assert message in one_error(main(["generate", "run"]), capsys)


@pytest.mark.thorough
def test_a_run_is_interrupted_and_resumed_bit_for_bit(folder, monkeypatch, capsys):
    assert trained("whole") == 0
    shown = capsys.readouterr().out
    for part in ("step      3   training", "step      7   training", "validation", "  | "):
        assert part in shown
    whole = content(folder / "whole")
    assert sorted(whole) == [
        "attention.png", "checkpoint.safetensors", "config.json", "loss.png", "losses.csv",
        "model.safetensors", "run.json", "vocabulary.json",
    ]  # fmt: skip
    for step in (2, 3, 6, 7):
        with monkeypatch.context() as patch:
            interrupt_at(step, patch)
            assert trained(f"parts{step}") == (130 if step < 7 else 0)
        if step < 7:
            shown = capsys.readouterr().out
            assert f"Stopped after {step} of 7 steps" in shown
            assert (command := f"minimha train --out parts{step} --resume") in shown
            assert main(command.split()[1:]) == 0
        assert content(folder / f"parts{step}") == whole


def test_a_run_that_was_killed_after_its_last_step_writes_the_rest(folder, monkeypatch, capsys):
    """It had been interrupted before, so there is a picture, of an earlier step."""
    assert trained("whole") == 0
    with monkeypatch.context() as patch:
        interrupt_at(3, patch)
        assert trained("run") == 130

    def killed(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(watching, "attention", killed)
        with pytest.raises(SystemExit):
            main(["train", "--out", "run", "--resume"])
    assert main(["train", "--out", "run", "--resume"]) == 0
    assert content(folder / "run") == content(folder / "whole")


def test_a_finished_run_says_so_and_does_nothing(folder, capsys):
    assert trained("run") == 0
    before = content(folder / "run")
    capsys.readouterr()
    assert main(["train", "--out", "run", "--resume"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "The run in run is finished: it has made all its 7 steps."
    assert "more --steps" in second
    assert content(folder / "run") == before


@pytest.mark.thorough
def test_a_second_ctrl_c_stops_at_once_and_says_how_to_continue(folder, monkeypatch, capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    interrupt_at(2, monkeypatch)
    monkeypatch.setattr(commands.Run, "save", lambda run: signal.raise_signal(signal.SIGINT))
    assert trained("run") == 130
    shown = capsys.readouterr()
    command = "minimha train --out run --resume"
    assert shown.out.endswith(f"Stopped. To continue from the last checkpoint:\n{command}\n")
    assert shown.err == ""
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert main(command.split()[1:]) == 0
    signal.signal(signal.SIGINT, before)


def losses(folder):
    rows = (folder / "losses.csv").read_text().splitlines()[1:]
    return [[float(x or "nan") for x in row.split(",")] for row in rows]


@pytest.mark.thorough
@pytest.mark.parametrize("way", parallel.WAYS)
def test_ranks_share_a_run_and_one_of_them_prints_and_writes(way, folder, capsys):
    assert trained("one", "--dropout", "0") == 0
    alone = capsys.readouterr().out
    options = ["--dropout", "0", *THREADS.split(), "2", "--parallel", way]
    assert trained("two", *options) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == alone.splitlines()[0]
    assert shown.count("The model is in two") == 1
    assert {path.name for path in (folder / "two").iterdir()} == {*content(folder / "one")}
    np.testing.assert_allclose(losses(folder / "two"), losses(folder / "one"), rtol=1e-5)
    assert main(["generate", "two", "--tokens", "5"]) == 0


@pytest.mark.thorough
def test_ranks_wait_while_rank_0_evaluates(folder, monkeypatch):
    def evaluate(*args):
        time.sleep(4)
        return 1.0

    monkeypatch.setitem(parallel.run.__kwdefaults__, "timeout", 3)  # much longer than a step
    monkeypatch.setattr(watching, "evaluate", evaluate)
    assert trained("out", "--dropout", "0", *THREADS.split(), "2", "--parallel", "data") == 0


@pytest.mark.thorough
@pytest.mark.this_cpu("its other process does not have the option")
def test_a_killed_run_resumes_bit_for_bit(folder):
    small = "--layers 1 --heads 4 --width 16 --context 16 --batch 3 --steps 24 --every 4"
    assert trained("whole", small=small) == 0
    call = [sys.executable, "-m", "minimha", "train", "--text", "t", *small.split()]
    with subprocess.Popen([*call, "--out", "killed"], stdout=subprocess.DEVNULL) as process:
        while not Path("killed", "checkpoint-previous.safetensors").exists():
            time.sleep(0.01)
        process.kill()
    assert not Path("killed", "attention.png").exists()  # it was killed before the end
    (folder / "killed" / ".model-1.safetensors").write_bytes(b"half")
    assert main(["train", "--out", "killed", "--resume"]) == 0
    assert content(folder / "killed") == content(folder / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize("library", ["array-api-strict", "torch"])
def test_a_run_computes_with_the_chosen_library(library, folder):
    pytest.importorskip(library.replace("-", "_"))
    assert trained("out", "--backend", library) == 0
    assert main(["generate", "out", "--tokens", "5"]) == 0

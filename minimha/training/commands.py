"""The commands `minimha train` and `minimha generate`."""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from minimha_autograd import backend

from .. import interchange, parallel, pictures
from ..interchange.files import written_whole
from ..interchange.json_file import (
    CHARACTER,
    LIST,
    OBJECT,
    STRING,
    integer,
    mistake,
    naming,
    number,
    one_of,
    read_json,
    require,
)
from ..interchange.pretrained import check_size
from ..transformers import GPT, stream
from . import data, watching
from .loop import PRECISIONS, Training
from .parallel_training import ParallelTraining

SETTINGS: dict[str, tuple[str, Any, str]] = {
    "text": ("FILE", "python", "the text to learn: a UTF-8 file; python, Python's own "
             "documentation; or shakespeare, which is downloaded once"),
    "layers": ("N", 4, "number of blocks"),
    "heads": ("N", 4, "attention heads in each block"),
    "width": ("N", 128, "width of the model, a multiple of --heads"),
    "context": ("N", 64, "the longest sequence, in characters"),
    "steps": ("N", 2000, "training steps"),
    "batch": ("N", 12, "number of sequences in each step"),
    "lr": ("RATE", 1e-3, "the largest learning rate, reached after a tenth of the steps"),
    "dropout": ("P", 0.0, "probability of dropout"),
    "seed": ("N", 0, "seed of all random numbers"),
    "backend": ("LIBRARY", "numpy", f"array library: {', '.join(backend.LIBRARIES)}"),
    "precision": ("DTYPE", "float32", "dtype of the factors of matrix products: float32, or "
                  "bfloat16 on a GPU"),
}  # fmt: skip
"""For each setting of a run, the name of its value, its default and its description."""

_KINDS = {
    **dict.fromkeys(("layers", "heads", "width", "context", "steps", "batch", "every"), integer(1)),
    "seed": integer(0),
    "lr": number("a finite number above 0", lambda x: x > 0),
    "dropout": number("a number of at least 0 and below 1", lambda x: 0 <= x < 1),
    "backend": one_of(backend.LIBRARIES),
    "precision": one_of(PRECISIONS),
    "text": STRING,
}
"""What kind of value each setting must have, on the command line and in run.json."""
_SIZES = {
    "layers": "num_layers", "heads": "num_heads", "width": "d_model", "context": "context",
}  # fmt: skip
"""The settings that are arguments of GPT, and their names there."""
_RUN, _VOCABULARY, _LOSSES = "run.json", "vocabulary.json", "losses.csv"
_CHECKPOINT, _PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"
_ATTENTION = "attention.png"
"""The last file that a run writes."""


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `minimha train` to the parser of this command. The options that the
    parser then reads have the attribute `run`, a function: run(options) runs the command and
    returns its exit code."""
    for name, (metavar, default, text) in SETTINGS.items():
        about = f"{text} (default: {default})"
        parser.add_argument(f"--{name}", type=type(default), metavar=metavar, help=about)
    ways = ", ".join(parallel.WAYS)
    _add(parser, _train, {
        "--every": ({"type": int, "metavar": "N"},
                    "steps between two reports and checkpoints (default: a tenth of the steps)"),
        "--out": ({"type": Path, "required": True, "metavar": "FOLDER"},
                  "a new folder for the model, its checkpoints and pictures"),
        "--resume": ({"action": "store_true"},
                     "continue the run in FOLDER; its settings need not be given again"),
        "--parallel": ({"choices": parallel.WAYS, "metavar": "WAY"},
                       f"share each step among several ranks: {ways}"),
        "--transport": ({"choices": ("mpi", "threads"), "default": "mpi"}, "ranks are the "
                        "processes that mpiexec started, or threads of this one (default: mpi)"),
        "--ranks": ({"type": int, "metavar": "N"}, "number of threads, with --transport threads"),
    })  # fmt: skip


def add_generate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `minimha generate` to the parser of this command. The options that the
    parser then reads have the attribute `run`, a function: run(options) runs the command and
    returns its exit code."""
    _add(parser, _generate, {
        "folder": ({"type": Path, "metavar": "FOLDER"},
                   "written by minimha train, or with a pretrained model"),
        "--tokens": ({"type": int, "default": 256, "metavar": "N"},
                     "number of tokens to generate (default: 256)"),
        "--prompt": ({"metavar": "TEXT"}, "the text to continue (default: a line break, or the "
                     "first character of a vocabulary without one)"),
        "--chat": ({"action": "store_true"}, "the prompt is a message to the model, which answers: "
                   "needs a model with a chat template"),
        "--temperature": ({"type": float, "default": 1.0, "metavar": "X"}, "below 1 more "
                          "predictable, above 1 more varied, 0 always the likeliest (default: 1)"),
        "--top-k": ({"type": int, "metavar": "K"}, "draw from the K most likely tokens only"),
        "--top-p": ({"type": float, "metavar": "P"},
                    "draw from the most likely tokens that together have probability P"),
        "--seed": ({"type": int, "default": 0, "metavar": "N"},
                   "seed of all random numbers (default: 0)"),
        "--no-cache": ({"action": "store_true"}, "compute all keys and values again for each "
                       "token: the same text, but slower"),
    })  # fmt: skip


def _add(parser: argparse.ArgumentParser, run: Any, arguments: dict[str, Any]) -> None:
    for name, (settings, text) in arguments.items():
        parser.add_argument(name, help=text, **settings)
    parser.set_defaults(run=run, command=parser)


class _UnusableError(Exception):
    """The settings of a run do not fit together, or cannot be used here."""


def _train(options: argparse.Namespace) -> int:
    comm = parallel.Communicator(0, 1)
    try:
        if options.transport == "threads":
            if not options.parallel or options.ranks is None or options.ranks < 1:
                needed = "--parallel WAY and --ranks N, at least 1"
                raise _UnusableError(f"--transport threads needs {needed}")
            return parallel.run(partial(_train_on, options), options.ranks)[0]
        if options.ranks is not None:
            raise _UnusableError("--ranks needs --transport threads; mpiexec -n sets it for MPI")
        comm = _world()
        if comm.size > 1 and not options.parallel:
            ways = ", ".join(parallel.WAYS)
            raise _UnusableError(f"{comm.size} ranks need --parallel and one of {ways}")
        return _train_on(options, comm if options.parallel else None)
    except _UnusableError as error:
        return comm.fail(f"minimha: {error}", 2)
    except (FloatingPointError, parallel.CommunicationError) as error:
        return comm.fail(f"minimha: {error}", 1)
    except (MemoryError, OSError) as error:
        if comm.size == 1:
            raise
        return comm.fail(f"minimha: {error}", 1)
    except KeyboardInterrupt:  # the second one, or while several ranks share the run
        if not (options.out / _RUN).exists():
            raise
        print(f"Stopped. To continue from the last checkpoint:\n{_resume(options.out)}")
        return 130


def _resume(folder: Path) -> str:
    return f"minimha train --out {shlex.quote(str(folder))} --resume"


def _world() -> parallel.Communicator:
    try:
        return parallel.world()
    except RuntimeError as error:
        raise _UnusableError(error) from error


def _train_on(options: argparse.Namespace, comm: parallel.Communicator | None) -> int:
    try:
        run = Run.of(options, comm)
    except (ValueError, RuntimeError, OSError) as error:
        raise _UnusableError(error) from error
    if comm is not None:
        comm.timeout = 3600.0  # the other ranks wait while rank 0 evaluates the model
    return run.train()


@dataclass
class Run:
    """A run of `minimha train` whose settings fit together, ready to start or to continue.

    folder     the folder of its files
    settings   by name, such as "layers", as on the command line and in run.json
    tokenizer  for the characters of the text
    parts      the tokens of the text, to train on and for validation
    training   the iterator that makes the steps
    losses     of the steps made so far
    comm       with --parallel, the communicator of this rank, otherwise None
    """

    folder: Path
    settings: dict[str, Any]
    tokenizer: data.CharacterTokenizer
    parts: data.Split
    training: Training
    losses: watching.Losses
    comm: parallel.Communicator | None = None

    @classmethod
    def of(cls, options: argparse.Namespace, comm: parallel.Communicator | None = None) -> Run:
        """The run that the options of `minimha train` ask for, a new one or one to continue. Checks
        all settings, then makes the folder of the run.

        comm  with --parallel, the communicator of this rank, otherwise None

        Raises ValueError, RuntimeError or OSError, with a one-line message.
        """
        folder = options.out
        settings = _settings(options)
        saved = [file for name in (_CHECKPOINT, _PREVIOUS) if (file := folder / name).exists()]
        names = {ours: name for name, ours in _SIZES.items()}
        with naming(folder / _RUN, names) if options.resume else nullcontext():
            text = _text(settings["text"])
            digest = hashlib.sha256(text.encode()).hexdigest()
            if settings.setdefault("sha256", digest) != digest:
                raise ValueError(
                    f"the text {settings['text']} has changed since the run in {folder} began: "
                    "restore it, or start a new run with another --out"
                )
            tokenizer = data.CharacterTokenizer(text)
            parts = data.split(tokenizer.encode(text), settings["context"])
            sizes = {ours: settings[name] for ours, name in names.items()}
            sizes["vocabulary"] = len(tokenizer)
            if saved:
                check_size(sizes, saved)
            model = GPT(**sizes, dropout=settings["dropout"], tie=True, rng=settings["seed"])
        model.to(settings["backend"])
        make: Any = Training
        if comm is not None:
            shared = {"comm": comm, "way": options.parallel, "every": settings["every"]}
            make = partial(ParallelTraining, **shared)
        training = make(
            model, parts.train, steps=settings["steps"], batch=settings["batch"],
            lr=settings["lr"], seed=settings["seed"], precision=settings["precision"],
        )  # fmt: skip
        losses = watching.Losses()
        if saved:
            training.resume(folder / _CHECKPOINT)
            losses = _read_losses(folder / _LOSSES, training.step)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"cannot write to {folder}: {error.strerror}") from error
        return cls(folder, settings, tokenizer, parts, training, losses, comm)

    def train(self) -> int:
        """Train, and print the progress. Returns the exit code: 0, or 130 if Ctrl-C stopped the
        run. If several ranks share the run, only rank 0 prints and writes, and Ctrl-C ends all
        of them."""
        run, tokenizer, validation = self.training, self.tokenizer, self.parts.validation
        if self.comm is not None and self.comm.rank:
            for _ in run:
                pass
            return 0
        if run.step == run.steps and self.is_complete:
            print(f"The run in {self.folder} is finished: it has made all its {run.steps} steps.")
            print("To train longer, start a new run with more --steps and another --out.")
            return 0
        self.begin()
        every = self.settings["every"]
        watched = watching.watch(run, validation, tokenizer, every=every, losses=self.losses)
        with _interrupts() if self.comm is None else nullcontext(threading.Event()) as interrupted:
            for _ in watched:
                if interrupted.is_set():
                    break
                if run.step % every == 0:
                    self.save()
            watched.close()
            self.save()
            finished = run.step == run.steps
            weights, labels = watching.attention(run.model, validation, tokenizer)
            title = f"Attention weights of each head after {run.step} steps"
            figure = pictures.attention_heads(weights, labels, title=title)
            pictures.save(figure, self.folder / _ATTENTION)
            if finished:  # the previous checkpoint depends on where the run was interrupted
                (self.folder / _PREVIOUS).unlink(missing_ok=True)
        if not finished:
            print(f"Stopped after {run.step} of {run.steps} steps. To continue:")
            print(_resume(self.folder))
            return 130
        print(f"\n{watching.sample(run.model, validation, tokenizer, 256)}\n")
        print(f"The model is in {self.folder}. To let it write more:")
        print(f"minimha generate {shlex.quote(str(self.folder))}")
        return 0

    @property
    def is_complete(self) -> bool:
        """Whether `train` has done everything that follows the last step: it draws the picture of
        the attention weights, and then deletes the previous checkpoint. The picture alone would be
        no proof, since `train` also draws it after Ctrl-C."""
        picture, previous = self.folder / _ATTENTION, self.folder / _PREVIOUS
        return picture.exists() and not previous.exists()

    def begin(self) -> None:
        """Write the settings of the run and the characters of its tokenizer, and remove files that
        a killed run left unfinished."""
        for unfinished in self.folder.glob(".*-*.*"):
            unfinished.unlink()
        _write_json(self.settings, self.folder / _RUN)
        _write_json(self.tokenizer.characters, self.folder / _VOCABULARY)

    def save(self) -> None:
        """Write the model, then the losses and their picture, and the checkpoint last. In this
        order, the losses in the file always reach at least to the step of the checkpoint, from
        which a run is resumed."""
        interchange.save_pretrained(self.training.model, self.folder)
        rows = [
            f"{step},{loss!r},{self.losses.validation.get(step, '')}\n"
            for step, loss in self.losses.training.items()
        ]
        with written_whole(self.folder / _LOSSES) as unfinished:
            unfinished.write_text("step,training,validation\n" + "".join(rows), encoding="utf-8")
        figure = pictures.losses(self.losses.training, self.losses.validation)
        pictures.save(figure, self.folder / "loss.png")
        self.training.save(self.folder / _CHECKPOINT)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """The settings, by name, of the run that the options of `minimha train` ask for: of a new run,
    the options and the defaults; of a resumed run, those in its folder. Raises ValueError for a
    setting that cannot be used, for an option that contradicts the run to resume, for a new run in
    a folder that is not empty, and if there is no run to resume."""
    folder = options.out
    given = {name: getattr(options, name) for name in [*SETTINGS, "every"]}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("text", "python") not in ("python", "shakespeare"):
        given["text"] = str(Path(given["text"]).resolve())
    if options.resume:
        if not (folder / _RUN).exists():
            raise ValueError(f"{folder} holds no run to resume: leave out --resume")
        stored: dict[str, Any] = read_json(folder / _RUN, OBJECT)
        stored.setdefault("precision", "float32")  # a run of an earlier version lacks it
        for name, kind in (_KINDS | {"sha256": STRING}).items():
            require(folder / _RUN, name, stored.get(name, ...), kind)
        for name, value in given.items():
            if stored[name] != value:
                raise ValueError(
                    f"the run in {folder} has --{name} {stored[name]}, not {value}: leave out "
                    f"--{name}, or start a new run with another --out"
                )
        return stored
    if (folder / _RUN).exists():
        raise ValueError(f"{folder} already holds a run: add --resume, or choose another --out")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder: choose another --out")
    settings = {name: default for name, (_, default, _) in SETTINGS.items()} | given
    settings.setdefault("every", max(1, settings["steps"] // 10))
    for name, kind in _KINDS.items():
        if wrong := mistake(f"--{name}", settings[name], kind):
            raise ValueError(wrong)
    if settings["width"] % settings["heads"]:
        raise ValueError(
            f"--width {settings['width']} is not a multiple of --heads {settings['heads']}"
        )
    return settings


def _text(source: str) -> str:
    if source == "python":
        return data.python_reference()
    return data.shakespeare() if source == "shakespeare" else data.read_text(source)


def _write_json(value: Any, path: Path) -> None:
    with written_whole(path) as unfinished:
        unfinished.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _read_losses(path: Path, last: int) -> watching.Losses:
    """Read the losses up to step `last` from the file losses.csv of a run. A run that was killed
    may also have written the losses of later steps, which the resumed run computes again."""
    losses = watching.Losses()
    with naming(path, {}):
        for line in path.read_text(encoding="utf-8").splitlines()[1 : last + 1]:
            step, training, validation = line.split(",")
            losses.training[int(step)] = float(training)
            if validation:
                losses.validation[int(step)] = float(validation)
    return losses


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """A context manager that gives an event. Inside the block, the first Ctrl-C only sets this
    event, so that no step or checkpoint is left half done. A second one raises
    KeyboardInterrupt."""
    interrupted = threading.Event()

    def notice(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, notice)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _generate(options: argparse.Namespace) -> int:
    try:
        if options.prompt == "":
            raise ValueError("--prompt must have at least one character")
        for name in ("tokens", "seed"):
            if (value := getattr(options, name)) < 0:
                raise ValueError(f"--{name} must be at least 0, not {value}")
        model, tokenizer = _model(options.folder)
        text = _beginning(tokenizer) if options.prompt is None else options.prompt
        if not options.chat:
            prompt = tokenizer.encode(text)
        elif isinstance(tokenizer, interchange.PretrainedTokenizer):
            prompt = tokenizer.encode_chat([{"role": "user", "content": text}])
        else:
            raise ValueError(f"--chat needs a pretrained model: {options.folder} holds none")
        tokens = stream(
            model, prompt[None, :], options.tokens, temperature=options.temperature,
            top_k=options.top_k, top_p=options.top_p, stop=tokenizer.stop, rng=options.seed,
            cache=not options.no_cache,
        )  # fmt: skip
        print("" if options.chat else tokenizer.decode(prompt), end="")
        for piece in tokenizer.stream((int(token) for (token,) in tokens), prompt):
            print(piece, end="", flush=True)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"minimha: {error}", file=sys.stderr)
        return 2
    print()
    return 0


def _beginning(tokenizer: data.CharacterTokenizer | interchange.PretrainedTokenizer) -> str:
    """The text to continue if the command has no --prompt: a line break or, if the vocabulary has
    none, its first character."""
    characters = getattr(tokenizer, "characters", "\n")
    return "\n" if "\n" in characters else characters[0]


def _model(folder: Path) -> tuple[GPT, data.CharacterTokenizer | interchange.PretrainedTokenizer]:
    """The model in a folder, and its tokenizer: a `CharacterTokenizer` if `minimha train` wrote the
    folder, otherwise the tokenizer of a pretrained model.

    Raises ValueError, RuntimeError or OSError, with a one-line message.
    """
    if not (folder / "config.json").exists():
        if (folder / _RUN).exists():
            raise ValueError(
                f"the run in {folder} has saved no model yet: continue it with {_resume(folder)}"
            )
        raise ValueError(f"{folder} holds no model: make one with minimha train --out {folder}")
    model = interchange.from_pretrained(folder)
    if not (folder / _VOCABULARY).exists():
        if not (folder / "tokenizer.json").exists():
            raise ValueError(f"{folder} holds neither {_VOCABULARY} nor tokenizer.json")
        return model, interchange.PretrainedTokenizer(folder)
    return model, _tokenizer(folder / _VOCABULARY, model.settings["vocabulary"])


def _tokenizer(path: Path, size: int) -> data.CharacterTokenizer:
    """Read a saved tokenizer. Raises ValueError unless it has `size` characters, as many as the
    model has tokens."""
    characters = read_json(path, LIST)
    for k, character in enumerate(characters):
        require(path, f"entry {k}", character, CHARACTER)
    tokenizer = data.CharacterTokenizer(characters)
    if len(tokenizer) != size:
        raise ValueError(
            f"{path} has {len(tokenizer)} different characters, but the vocabulary of the model "
            f"has {size}"
        )
    return tokenizer

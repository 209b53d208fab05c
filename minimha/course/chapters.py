"""The chapters of the course, and the command `minimha notebooks`, which copies and opens them."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote


class Chapter(NamedTuple):
    """A chapter of the course: its number, its name in messages and in the names of files, its
    title, and the minutes that it takes to read it and do its exercises."""

    number: int
    name: str
    title: str
    minutes: int

    @property
    def stem(self) -> str:
        """The name of the chapter's notebook, without the ending: "05_attention"."""
        return f"{self.number:02}_{self.name.replace('-', '_')}"


CHAPTERS = {
    chapter.number: chapter
    for chapter in (
        Chapter(1, "arrays", "Arrays, shapes, broadcasting", 70),
        Chapter(2, "autograd", "An engine in 40 lines", 100),
        Chapter(3, "gradient-checks", "Checking gradients", 85),
        Chapter(4, "projections", "Queries, keys and values: one matmul or many", 90),
        Chapter(5, "attention", "Attention", 85),
        Chapter(6, "masks", "Masks, and where NaN comes from", 85),
        Chapter(7, "multi-head", "Many heads", 115),
        Chapter(8, "positions", "Positions", 125),
        Chapter(9, "training", "Training a transformer", 115),
        Chapter(10, "debugging", "Debugging: when it does not learn", 105),
        Chapter(11, "speed", "Speed, and where the time goes", 150),
        Chapter(12, "gpu", "Kernels for a GPU", 140),
        Chapter(13, "many-machines", "Many machines", 140),
        Chapter(14, "real-models", "Real models", 115),
        Chapter(15, "since-2023", "Attention since 2023", 120),
    )
}
"""The chapters by number."""


def notebooks() -> list[Path]:
    """The paths of the student notebooks in the order of the chapters: in an installed package,
    those in its folder `notebooks`; in a clone of the repository, those in the folder `notebooks`
    at its top."""
    here = Path(__file__).parents[1]
    folder = next(f for f in (here / "notebooks", here.parent / "notebooks") if f.is_dir())
    paths = (folder / f"{chapter.stem}.ipynb" for chapter in CHAPTERS.values())
    return [path for path in paths if path.exists()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `minimha notebooks` to the parser of this command. The options that the
    parser then reads have the attribute `run`, a function: run(options) runs the command and
    returns its exit code."""
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("minimha-notebooks"), metavar="DIR",
        help="where they go (default: minimha-notebooks); existing files stay unchanged",
    )  # fmt: skip
    parser.add_argument("--no-open", action="store_true", help="copy them only")
    parser.set_defaults(run=_hand_out, command=parser)


def _hand_out(options: Any) -> int:
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        chapters = notebooks()
        new = [path for path in chapters if not (options.folder / path.name).exists()]
        for path in new:
            (options.folder / path.name).write_bytes(path.read_bytes())
    except OSError as error:
        print(f"minimha: cannot write to {options.folder}: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{len(chapters)} chapters in {options.folder}: {len(new)} new, "
        f"{len(chapters) - len(new)} left unchanged"
    )
    return 0 if options.no_open else _opened(options.folder)


def _opened(folder: Path) -> int:
    """Open the first chapter in the folder of chapters in JupyterLab, and wait until the reader
    stops the server. Returns its exit code, or 1 if JupyterLab is not installed.

    The server shows the folder that contains the folder of chapters, so that in a clone the links
    from the chapters to docs/ work.
    """
    if not importlib.util.find_spec("jupyterlab"):
        print("To open them, install JupyterLab: pip install jupyterlab")
        print(f"then: jupyter lab {folder}")
        return 1
    folder = folder.resolve()
    page = f"/lab/tree/{quote(folder.name)}/{notebooks()[0].name}"
    options = [f"--ServerApp.root_dir={folder.parent}", f"--LabApp.default_url={page}"]
    sys.stdout.flush()  # before the server writes its own lines
    return subprocess.call(  # a container's user is root
        [sys.executable, "-m", "jupyterlab", *options, "--allow-root"]
    )

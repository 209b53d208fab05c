"""The chapters of the course, and where their notebooks are."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Chapter(NamedTuple):
    """number and name are those that messages and files go by; minutes to read and do it all."""

    number: int
    name: str
    title: str
    minutes: int

    @property
    def stem(self) -> str:
        """The name of its notebook, without the ending: "05_attention"."""
        return f"{self.number:02}_{self.name.replace('-', '_')}"


CHAPTERS = {
    chapter.number: chapter
    for chapter in (
        Chapter(1, "arrays", "Arrays, shapes, broadcasting", 45),
        Chapter(2, "autograd", "An engine in one sitting", 60),
        Chapter(3, "gradient-checks", "Checking gradients", 45),
        Chapter(4, "projections", "Queries, keys and values: one matmul or many", 60),
        Chapter(5, "attention", "Attention", 50),
        Chapter(6, "masks", "Masks, and where NaN comes from", 55),
        Chapter(7, "multi-head", "Many heads", 60),
    )
}


def notebooks() -> list[Path]:
    """The student notebooks in order: those in the package, or in a clone those at its top."""
    here = Path(__file__).parent
    folder = next(f for f in (here / "notebooks", here.parent / "notebooks") if f.is_dir())
    return [folder / f"{chapter.stem}.ipynb" for chapter in CHAPTERS.values()]

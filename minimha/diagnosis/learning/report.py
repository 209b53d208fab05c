"""The report on a model: what each check found. It prints like the report of a gradient check."""

from __future__ import annotations

import posixpath
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minimha_autograd.gradcheck import labelled, listed, text_table


class Finding(NamedTuple):
    """Something wrong with a model, its data or its training.

    name     a short name, the same for every model: "leak from the future"
    where    the path of the parameter or module, "blocks.0.mlp", or a phrase: "axis 0, the batch"
    figure   what was measured, or computed from the weights
    text     what it means, and the likely cause
    chapter  the chapter to read: "06 masks"
    """

    name: str
    where: str
    figure: str
    text: str
    chapter: str

    def __str__(self) -> str:
        lines = (
            ("where", self.where),
            ("measured", self.figure),
            ("looks like", self.text),
            ("read", f"chapter {self.chapter}"),
        )
        return "\n".join([self.name, *(labelled(*line) for line in lines)])


def some(names: Sequence[str]) -> str:
    """List up to four names in words, "a, b, c and d"; of more names, list three and count the
    others: "a, b, c and 9 more"."""
    few = [*names[:3], f"{len(names) - 3} more"]
    return listed(names if len(names) <= 4 else few)


def common(names: Sequence[str]) -> str:
    """Return the module path that all these parameters share; if they share none, a list of some of
    their names."""
    shared = posixpath.commonpath([name.replace(".", "/") for name in names])
    return shared.replace("/", ".") or some(names)


@dataclass(frozen=True)
class ModelReport:
    """The result of `mh.diagnose`.

    model     the name of the model's class
    findings  the most likely cause first; the others may be its consequences
    figures   what the checks measured, by the name of the check
    """

    model: str
    findings: list[Finding]
    figures: Mapping[str, str]

    def __repr__(self) -> str:
        if not self.findings:
            table = text_table(("check", "measured"), self.figures.items())
            return f"{self.model}: no findings\n{table}"
        count = len(self.findings)
        line = f"{self.model}: {count} finding{'s' if count > 1 else ''}"
        if count > 1:
            line += ". Start with the first: the others may be its consequences"
        return "\n".join([textwrap.fill(line, 80), *map(str, self.findings)])

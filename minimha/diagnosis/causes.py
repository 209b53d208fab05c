"""What a diagnosis says: nodes at fault, and for each the likely mistake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

UNEXPLAINED = "unexplained"


class Cause(NamedTuple):
    """A likely mistake: its short name, a sentence for the reader, and the chapter to read."""

    name: str
    text: str
    chapter: str = ""


@dataclass(frozen=True)
class Finding:
    """A node at fault, the nodes computed from it, whose gradients are right, and the cause."""

    node: str
    after: tuple[str, ...]
    cause: str
    text: str
    chapter: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The nodes at fault, the last made first, each with its cause. There is at least one.

    nodes   the names of inputs and intermediates at fault
    cause   the short name of the first one's likely cause, or "unexplained"
    text    the same in a sentence
    chapter the chapter to read about it, "" for none
    """

    findings: tuple[Finding, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of inputs and intermediates at fault."""
        return tuple(finding.node for finding in self.findings)

    @property
    def cause(self) -> str:
        """The short name of the likely cause, or "unexplained"."""
        return self.findings[0].cause

    @property
    def text(self) -> str:
        """The likely cause in a sentence."""
        return self.findings[0].text

    @property
    def chapter(self) -> str:
        """The chapter to read about it, "" for none."""
        return self.findings[0].chapter

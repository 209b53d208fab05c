"""What chapters and docs state, and what proves it.

A statement needs a proof if it has one of the WORDS, a number, a relation to a number in a formula,
or the name of another library. tests/proofs/PAGE.txt names the proofs of a page. The pieces of the
page that are proved stand below their proof, indented, one a line:

    cell: for h in range(2):
        its output is 7, between 4 and 8
        never leaves this range

A piece has at least three words of the page. It proves the words and numbers that it contains, so
that a changed number needs a new proof. If a test or a source proves a fact about another library,
the version stands on the page or in the proof. The header of a table stands for the table, and "the whole
page" for a page that a script writes. These are the proofs:

cell      a part of a code cell of this page, or "cell 05: ..." of chapter 05
test      path::name
code      path: a part of that file, where the page says what the code does
measured  path: a part of the page that a benchmark wrote
command   a command that measures it, and the year of the last run
source    a work with its year, or a library's page with its version
sum       a line of arithmetic that is true
choice    nothing to prove: a definition, an example, an exercise, an instruction, a name or a plan

    python -m statements [PAGE ...]     what has no proof yet, with tests/ on the path
"""

import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("notebooks/source/*.md")), *sorted(ROOT.glob("docs/*.md"))]
CHOICES = {"definition", "example", "exercise", "instruction", "name", "plan"}

WORDS = r"\b(?:always|never|only|exactly|cannot|can’t|can't|optimal|best|at\s+most)\b"
LIBRARIES = (
    r"\b(?:PyTorch|torch|JAX|TensorFlow|Keras|Transformers|HIPS|vLLM|FlashAttention|FlexAttention|"
    r"xformers)\b"
)
NUMBER = r"(?<![\w.,/−–-])[−-]?\d(?:[\d,.\u202f]*\d)?(?![\w-])"
TRIGGER = re.compile(f"(?i:{WORDS})|{LIBRARIES}|{NUMBER}")
RELATION = re.compile(r"(?:[=≈<>≤≥]|\\(?:approx|leq?|geq?)\b)\s*[−-]?(?:\d|\\[td]?frac\s*\d)")
"""A formula states something if it compares with a number."""

NO_PROSE = re.compile(
    r"""
      ^---\n.*?\n---\n                     # the front matter
    | ^(?P<fence>```+|~~~+).*?^(?P=fence)  # a block of code
    | <!--.*?-->
    | \$\$.*?\$\$                          # a formula on a line of its own
    | (?P<tick>`+).+?(?P=tick)             # code in a line
    | \]\([^)]*\)                          # the target of a link
    | <[a-zA-Z/][^>]*>
    | ^\[[^\]]+\]:.*?$
    | https?://\S+
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
NO_NUMBERS = re.compile(
    r"\b[Cc]hapters?\s+\d\d(?:(?:,| to| and| or)\s+\d\d)*"
    r"|\b(?:[Qq]uestions?|[Ee]xercises?|[Ss]ections?|[Ee]quations?|[Ff]igures?|[Tt]ables?)\s+\d[\d.]*"
    r"|\b(?:[Hh]ead|[Tt]oken|[Ll]ayer|[Rr]ank)\s+\d+"  # its name
    r"|\b(?:19|20)\d\d\b"  # a year
    r"|^\s*\d+\.\s"  # of a list
    r"|^#.*?\d\d\s·",  # of a chapter
    re.MULTILINE,
)
FORMULA = re.compile(r"(?<![\\$])\$(?!\$)((?:[^$\n]|\n(?!\n))+?)(?<!\\)\$")


class Entry(NamedTuple):
    """Pieces of a page, and the kind and text of their proof."""

    kind: str
    proof: str
    pieces: list[str]


def name(page):
    """A page's path in the project."""
    return Path(page).resolve().relative_to(ROOT).as_posix()


def register(page):
    """The file with the proofs of a page."""
    return ROOT / "tests" / "proofs" / f"{page.stem}.txt"


def entries(text):
    """The entries of a register."""
    found = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            found[-1].pieces.append(line.strip())
        else:
            kind, _, proof = line.partition(":")
            found.append(Entry(kind, proof.strip(), []))
    return found


def triggers(text):
    """The places (start, stop) of what needs a proof."""
    found = []

    def blank(match):
        return re.sub(r"\S", " ", match[0])

    def formula(match):
        if RELATION.search(match[1]):
            found.append(match.span())
        return blank(match)

    prose = NO_NUMBERS.sub(blank, FORMULA.sub(formula, NO_PROSE.sub(blank, text)))
    found += [match.span() for match in TRIGGER.finditer(prose)]
    return sorted(found)


def places(piece, text):
    """The places (start, stop) of a piece, wherever the lines of the text break."""
    if piece == "the whole page":
        return [(0, len(text))]
    pattern = r"\s+".join(map(re.escape, piece.split()))
    if piece.startswith("|") and piece.endswith("|"):
        pattern = f"^{pattern}$(?:\n\\|.*$)*"  # a table
    return [match.span() for match in re.finditer(pattern, text, re.MULTILINE)]


def unproved(text, proofs):
    """Each line number and sentence with something that no piece of these entries contains."""
    covered = [place for entry in proofs for piece in entry.pieces for place in places(piece, text)]
    found = {}
    for start, stop in triggers(text):
        if not any(first <= start and stop <= last for first, last in covered):
            line = text.count("\n", 0, start) + 1
            found.setdefault(_sentence(text, start, stop), []).append((line, text[start:stop]))
    return [
        f"line {where[0][0]}: {', '.join(' '.join(what.split()) for _, what in where)}: {sentence}"
        for sentence, where in found.items()
    ]


def _sentence(text, start, stop):
    before = re.split(r"(?<=[.:;?!])\s|\n\n|\n\s*[-|>]", text[:start])[-1]
    after = re.split(r"(?<=[.:;?!])\s|\n\n|\n\s*[-|]", text[stop:])[0]
    return " ".join((before + text[start:stop] + after).split())


def wrong(page, text, proofs):
    """What is wrong with the entries of a page, a line each."""
    needed = triggers(text)
    for kind, proof, pieces in proofs:
        if kind.split()[0] not in PROOFS:
            yield f"{kind}: is no kind of proof: {', '.join(PROOFS)}"
        elif not PROOFS[kind.split()[0]](page, kind, proof):
            yield f"{kind}: {proof}: is not there, or not true"
        if not pieces:
            yield f"{kind}: {proof}: proves nothing: write pieces of the page below it, indented"
        for piece in pieces:
            found = places(piece, text)
            if len(piece.split()) < 3:
                yield f"“{piece}” has fewer than three words"
            elif not found:
                yield f"“{piece}” is not on the page"
            elif not any(
                first <= start and stop <= last for first, last in found for start, stop in needed
            ):
                yield f"“{piece}” needs no proof"
            elif kind in ("test", "source"):
                for library in re.findall(LIBRARIES, piece):
                    if not _has_version(library, f"{text} {proof}"):
                        yield f"“{piece}”: of which version of {library}?"


def _has_version(library, text):
    """Whether a version stands behind the name of a library, or of the one that contains it."""
    names = {"torch": "(?:PyTorch|torch)", "FlexAttention": "PyTorch"}
    return re.search(rf"\b{names.get(library, library)}\b[^.]{{0,60}}\b(\d+\.\d|20\d\d)", text)


def _cell(page, kind, proof):
    chapter = kind.partition(" ")[2]
    pages = ROOT.glob(f"notebooks/source/{chapter}_*.md") if chapter else [page]
    blocks = [
        block
        for path in pages
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.M | re.S)
    ]
    return bool(proof) and any(proof in block for block in blocks)


def _test(page, kind, proof):
    path, _, test = proof.partition("::")
    file = ROOT / path
    return file.is_file() and f"def {test}(" in file.read_text("utf-8")


def _part(page, kind, proof):
    path, _, part = proof.partition(": ")
    file = ROOT / path
    return bool(part) and file.is_file() and part.strip() in file.read_text("utf-8")


def _source(page, kind, proof):  # a year or a version
    return bool(re.search(r"\b(19|20)\d\d\b|\b\d+\.\d+", proof))


def _sum(page, kind, proof):
    return bool(eval(proof, {"math": math, "np": np})) is True


def _choice(page, kind, proof):
    return proof in CHOICES


PROOFS = {
    "cell": _cell,
    "test": _test,
    "code": _part,
    "measured": _part,
    "command": _source,
    "source": _source,
    "sum": _sum,
    "choice": _choice,
}


def report(page):
    """What a page lacks, and what is wrong with its entries, a line each."""
    text = page.read_text("utf-8")
    file = register(page)
    proofs = entries(file.read_text("utf-8")) if file.exists() else []
    return [*wrong(page, text, proofs), *unproved(text, proofs)]


def main(paths):
    pages = [Path(path).resolve() for path in paths] or PAGES
    lines = [f"{name(page)}, {line}" for page in pages for line in report(page)]
    sys.stdout.write("\n".join([*lines, f"{len(lines)} without a proof or with a wrong one\n"]))


if __name__ == "__main__":
    main(sys.argv[1:])

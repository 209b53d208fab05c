"""The script that lists what chapters and docs state, and whether each statement has a proof."""

import re

import pytest
import statements
from statements import Entry

PAGE = next(page for page in statements.PAGES if page.stem == "07_multi_head")


@pytest.mark.parametrize("page", statements.PAGES, ids=statements.name)
def test_every_statement_of_a_page_has_a_proof(page):
    found = statements.report(page)
    advice = (
        f"write the proof of each statement of {statements.name(page)} to "
        f"{statements.name(statements.register(page))}, as tests/statements.py says"
    )
    assert not found, "\n".join([advice, *found])


def test_every_register_belongs_to_a_page():
    files = {file.stem for file in (statements.ROOT / "tests" / "proofs").iterdir()}
    assert files <= {page.stem for page in statements.PAGES}


@pytest.mark.parametrize("text", [
    "A head never sees another head.",
    "It is exactly as fast.",
    "This takes at\nmost a minute.",
    "A step takes 37 ms.",
    "It is −0.5 there.",
    "It is 1,024 bytes.",
    "The output is $\\tfrac34 \\cdot 8 + 1 = 7$.",
    "The rank is $r \\le 4$.",
    "PyTorch has no such argument.",
    "| kernel | 12 |",
])  # fmt: skip
def test_what_needs_a_proof(text):
    assert statements.unproved(text, [])


@pytest.mark.parametrize("text", [
    "A head sees $D$ columns of $x_2$, as in chapter 05 and question 3 (2017).",
    "Run `x[0]` in float32, on GPT-2 or in 16-bit floats.",
    "1. Look at head 0.",
    "```python\nassert x == 3  # only\n```",
    "<!-- 12 --> [Attention](page-3.md)",
    "# 07 · Many heads",
])  # fmt: skip
def test_what_needs_none(text):
    assert statements.unproved(text, []) == []


def test_a_piece_proves_the_numbers_in_it_wherever_lines_break():
    text = "A step takes 37 ms on\na machine of 2 cores."
    proofs = statements.entries("choice: example\n    takes 37 ms on a machine\n")
    assert [line.split(":")[1] for line in statements.unproved(text, proofs)] == [" 2"]
    assert len(statements.unproved(text.replace("37", "38"), proofs)) == 1


def test_the_header_of_a_table_stands_for_the_table():
    text = "| a | b |\n| --- | --- |\n| 1 | 2 |\n\nNo more than 3."
    proofs = [Entry("choice", "example", ["| a | b |"])]
    assert [line.split(":")[0] for line in statements.unproved(text, proofs)] == ["line 5"]


@pytest.mark.parametrize(("entry", "said"), [
    (Entry("cell", "no such cell", ["takes 37 ms"]), "is not there, or not true"),
    (Entry("cell 05", "Q = np.array([[[np.log(3)], [0]], [[", ["takes 37 ms"]), "is not there"),
    (Entry("test", "tests/test_statements.py::test_no_such", ["takes 37 ms"]), "is not there"),
    (Entry("code", "minimha/no_such.py: x", ["takes 37 ms"]), "is not there"),
    (Entry("measured", "docs/measured/tokens.md: no such row", ["takes 37 ms"]), "is not there"),
    (Entry("source", "somebody said so", ["takes 37 ms"]), "is not there"),
    (Entry("sum", "30 + 6 == 37", ["takes 37 ms"]), "not true"),
    (Entry("choice", "obvious", ["takes 37 ms"]), "is not there"),
    (Entry("belief", "", ["takes 37 ms"]), "is no kind of proof"),
    (Entry("choice", "example", []), "proves nothing"),
    (Entry("choice", "example", ["37 ms"]), "fewer than three words"),
    (Entry("choice", "example", ["takes 38 ms"]), "is not on the page"),
    (Entry("choice", "example", ["on this machine"]), "needs no proof"),
])  # fmt: skip
def test_what_is_no_proof(entry, said):
    text = "A step takes 37 ms on this machine."
    assert re.search(said, "\n".join(statements.wrong(PAGE, text, [entry])))


def test_a_fact_about_another_library_has_a_version():
    text = "PyTorch has no such argument."
    proof = "test", f"tests/test_statements.py::{test_what_is_no_proof.__name__}"
    pieces = [text.rstrip(".")]
    assert "of which version of PyTorch?" in "".join(
        statements.wrong(PAGE, text, [(*proof, pieces)])
    )
    assert not [*statements.wrong(PAGE, f"{text} (PyTorch 2.13.)", [(*proof, pieces)])]


@pytest.mark.parametrize("entry", [
    Entry("cell", "heads, weights = mh.scaled_dot_product_attention(Q, K, V", ["takes 37 ms"]),
    Entry("test", f"tests/test_statements.py::{test_what_is_no_proof.__name__}", ["takes 37 ms"]),
    Entry("code", "tests/test_statements.py: import pytest", ["takes 37 ms"]),
    Entry("source", "Vaswani et al., “Attention is all you need” (2017)", ["takes 37 ms"]),
    Entry("sum", "30 + 7 == 37", ["takes 37 ms"]),
    Entry("choice", "example", ["takes 37 ms"]),
])  # fmt: skip
def test_what_is_a_proof(entry):
    assert [*statements.wrong(PAGE, "A step takes 37 ms on this machine.", [entry])] == []

"""Every chapter runs from top to bottom, is committed without outputs, and can be solved."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip(
    "nbformat", reason="nbformat is not installed: pip install '.[test]'"
)
nbclient = pytest.importorskip(
    "nbclient", reason="nbclient is not installed: pip install '.[test]'"
)

CHAPTERS = sorted(Path(__file__).parents[1].joinpath("notebooks").glob("*.ipynb"))
SOLUTIONS = {
    "05_attention": {
        "raise NotImplementedError  # return a tuple with one gradient: (dx,)": (
            "return (y * (dy - (dy * y).sum(axis=-1, keepdims=True)),)"
        ),
        "raise NotImplementedError  # return (dquery, dkey, dvalue)": (
            "(dscores,) = pull_softmax(dout @ value.mT)\n"
            "        dscores = dscores / np.sqrt(query.shape[-1])\n"
            "        return dscores @ key, dscores.mT @ query, weights.mT @ dout"
        ),
    }
}


def run(notebook, folder):
    """Run all cells; the text that each printed."""
    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": folder}}
    ).execute()
    return [
        "".join(out.get("text", "") for out in cell.outputs)
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


def test_a_chapter_is_committed_without_outputs(chapter):
    for cell in nbformat.read(chapter, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert chapter.stat().st_size < 60_000


def test_a_chapter_runs_from_top_to_bottom(chapter, tmp_path):
    notebook = nbformat.read(chapter, as_version=4)
    printed = "".join(run(notebook, tmp_path))
    assert printed.count("still to do") == len(SOLUTIONS[chapter.stem])
    pictured = [
        out
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if "image/png" in out.get("data", {})
    ]
    assert pictured


def test_a_chapter_can_be_solved(chapter, tmp_path):
    notebook = nbformat.read(chapter, as_version=4)
    for stub, solution in SOLUTIONS[chapter.stem].items():
        (cell,) = [cell for cell in notebook.cells if stub in cell.source]
        cell.source = cell.source.replace(stub, solution)
        cell.metadata["solved"] = True
    printed = run(notebook, tmp_path)
    solved = [cell.metadata.get("solved") for cell in notebook.cells if cell.cell_type == "code"]
    for text, is_solution in zip(printed, solved, strict=True):
        assert "still to do" not in text
        if is_solution:
            assert "complex step" in text
            assert "is wrong" not in text


def test_the_two_tokens_come_out_as_by_hand(tmp_path):
    """The numbers worked by hand in chapter 05."""
    (path,) = [path for path in CHAPTERS if path.stem == "05_attention"]
    printed = "".join(run(nbformat.read(path, as_version=4), tmp_path))
    for line in (
        "[[0.75 0.25]\n [0.5  0.5 ]]",
        "[[7.]\n [6.]]",
        "dQ [0.75 0.  ]",
        "dV [0.75 0.25]",
    ):
        assert line in printed
    assert "ratio        2, the same in every entry" in printed

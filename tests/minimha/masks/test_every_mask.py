"""Every public mask has a record and a row in docs, and every implementation of attention obeys it."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from attention_paths import assert_exact, case_of
from implementations import NAMES, WHY_NOT, results_by
from mask_records import BY_NAME, KINDS_DRAWN, RECORDS, chooser, examples, not_public, sample

from minimha import masks, pictures
from minimha.kernels import attention as ways
from minimha.kernels.attention import layout
from minimha.kernels.attention import tiled as cpu_tiled
from minimha.kernels.gpu import cuda
from minimha.kernels.gpu import fused as gpu_fused
from minimha.kernels.gpu import tiled as gpu_tiled
from minimha.masks import kinds

ROOT = Path(__file__).parents[3]
NOT_MASKS = {"empty_rows", "key_intervals", "resolve"}
"""Functions of `minimha.masks` that return no mask."""


def functions(module):
    return {name for name, x in vars(module).items() if inspect.isfunction(x) and name[0] != "_"}


def test_every_public_mask_has_a_record():
    public = {name for name in masks.__all__ if name in functions(masks)} - NOT_MASKS
    for name in sorted(public - BY_NAME.keys()):
        pytest.fail(f"masks.{name} has no record: add one to tests/mask_records.py")
    assert [record.name for record in RECORDS] == list(BY_NAME), (
        "tests/mask_records.py repeats a mask"
    )


def test_every_mask_is_public():
    assert not not_public(), not_public()


@pytest.mark.parametrize("name", BY_NAME)
def test_every_record_has_examples_and_refusals(name):
    for part in ("drawn", "examples", "refused"):
        assert getattr(BY_NAME[name], part), f"tests/mask_records.py: masks.{name} has no {part}"


@pytest.mark.parametrize("kind", KINDS_DRAWN)
def test_a_mask_depends_on_the_positions_of_queries_unless_its_record_denies_it(kind):
    """And if it does, the mask refuses T ≠ S without an offset, since it cannot know it."""
    record, draw = KINDS_DRAWN[kind]
    shape = (2, 3, 4, 8)
    anywhere = True
    for seed in range(40):
        rng = np.random.default_rng(seed)
        mask, _ = draw(chooser(rng), rng, shape, 0)
        first, later = (mask.at(offset).array(shape) for offset in (0, 2))
        if np.array_equal(first, later):
            continue
        anywhere = False
        try:
            mask.array(shape)
        except ValueError:
            continue
        pytest.fail(
            f"{mask!r} depends on the offset, but without one accepts T = 4 queries and S = 8 keys: "
            "in minimha/masks/kinds.py, take the offset from offset_of, which refuses them"
        )
    if anywhere:
        assert draw in record.anywhere, (
            f"masks.{record.name} ignores the offset of `Mask.at`: use it in minimha/masks/kinds.py and "
            f"in the rule of tests/mask_records.py. If each query sees the same keys wherever it is, "
            f"write anywhere=[{kind}] in the record"
        )
    else:
        assert draw not in record.anywhere, (
            f"masks.{record.name} depends on the offset: remove {kind} from `anywhere` of its record "
            "in tests/mask_records.py"
        )


@pytest.mark.parametrize("name", BY_NAME)
def test_every_mask_has_a_row_in_its_page_of_docs(name):
    page = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
    assert f"\n| `{name}(" in page, f"masks.{name} has no row in the table of docs/masks.md"


@pytest.mark.parametrize("name", BY_NAME)
def test_lists_of_masks_in_prose_name_every_mask(name):
    texts = {
        "the heading of minimha/masks/kinds.py": kinds.__doc__.partition("\n")[0],
        "key_intervals of minimha/masks/queries.py, where it says when inside is None,": (
            masks.key_intervals.__doc__.partition("`inside` is None for")[2]
        ),
    }
    record = BY_NAME[name]
    if set(record.drawn) - set(record.anywhere):  # it depends on the positions of queries
        page = (ROOT / "docs" / "masks.md").read_text(encoding="utf-8")
        about = page.partition("\nIf the number of queries, T, is not")[2].partition("\n\n")[0]
        texts["docs/masks.md, where it says which masks need an offset,"] = about
    for where, text in texts.items():
        assert re.search(rf"\b{name}\b", text), f"{where} does not name {name}"


@pytest.mark.parametrize("text", examples())
def test_the_repr_of_an_example_is_its_code(text):
    found = repr(examples()[text])
    assert found == text, f"repr is {found!r}, but tests/mask_records.py has {text!r}"


@pytest.mark.parametrize("text", examples())
def test_a_notebook_can_draw_every_example(text):
    mask = examples()[text]
    try:
        mask.array(pictures.masks.small_shape(mask))
    except ValueError as error:
        pytest.fail(f"{text} does not fit the scores that its attribute `sizes` allows: {error}")


def small_tiles(patch):
    """Several tiles of queries and keys in a short sequence, on the CPU and on a GPU."""
    patch.setattr(cpu_tiled, "_height", lambda keys: 24)
    for name, size in {"FORWARD": 32, "BACKWARD": 32, "_IN_CACHE": 32}.items():
        patch.setattr(cpu_tiled, name, size)
    patch.setattr(layout, "_MASK_ENTRIES", 1)
    patch.setattr(layout, "_MASK_QUERIES", 16)
    patch.setattr(gpu_tiled, "tile_sizes", lambda *_: (32, 16))
    patch.setattr(gpu_fused, "_BLOCKS", 3)
    patch.setattr(gpu_fused, "_THREADS", 32)
    patch.setattr(cuda, "BLOCKS", 3)


def found_by(name, case):
    """The output and the gradients of the seven inputs, by an implementation and never by the
    reference in its place."""

    def fail(*_, **__):
        raise AssertionError("the reference was called")

    with pytest.MonkeyPatch.context() as patch:
        small_tiles(patch)
        patch.setattr(ways, "attention", fail)
        return results_by(name, case)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS_DRAWN)
def test_every_implementation_obeys_the_rule_of_every_mask(kind, name, rng):
    """Against the formula with an array that the rule makes entry by entry."""
    if WHY_NOT.get(name):
        pytest.skip(WHY_NOT[name])
    for t, s in ((4, 6), (37, 45)):
        case = case_of(rng, t, s, batch=(2,), heads=(2, 1))
        mask, seen = sample(kind, rng, case.shape)
        try:
            assert_exact(found_by(name, case.but(mask=mask)), case.masked(seen))
        except Exception as error:
            record, _ = KINDS_DRAWN[kind]
            error.add_note(
                f"attention by {name!r} does not obey masks.{record.name}, here {mask!r}. The "
                "reference reads its `_array` in minimha/masks/kinds.py, kernels its `_intervals`"
            )
            raise

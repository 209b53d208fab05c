"""A check of kernels: does each block compute its tiles only from what it loads?

The student's function is called with serial numbers in place of the entries of its arrays; only
`ct.load` gives a block the entries. So nothing can be computed on whole arrays, and the check knows
which block loaded and stored which entries. When a submission is graded, its loads and stores are
calls to the grader's process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from ...diagnosis.closeness import is_close
from .calls import unrecorded
from .comparisons import named, same

_FIRST = 1 << 40
"""The first serial number."""
_MOST = 1 << 12
"""The largest number of blocks, and of entries in a tile: with these limits, a submission cannot
make the grader run out of memory."""

Place = tuple[str, tuple[int, ...]]
"""The position of an entry: the name of its array, and its index there."""


def same_in_blocks(
    yours: Callable[..., Any], inputs: Mapping[str, np.ndarray], numbers: tuple[Any, ...],
    expected: Mapping[str, np.ndarray], axes: Mapping[str, str], tile: Mapping[str, int],
    largest: int | None = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless yours(*inputs, *numbers) launches one kernel whose blocks compute
    the expected results, each block only from the tiles that it loads.

    inputs    the arrays by name
    numbers   the arguments after the arrays, such as a scale or the lengths of a tile
    expected  the right results by name
    axes      the letters of each array's axes, {"x": "T D", "y": "D M", "x y": "T M"} for inputs x
              and y and a result named "x y". An entry of a result depends on the entries of an
              input that have the same index along all axes that both arrays have
    tile      the largest lengths of a tile: {"T": 4, "D": 8, "M": 2}. Along an axis that an input
              has, too, all tiles that a block stores have together no more entries than this
    largest   the largest number of entries of a tile that the kernel makes by joining other tiles

    Each block must load everything on which the entries that it stores depend, in any order and any
    number of times, and nothing else.
    """
    from ...kernels import numpy_tile as ct

    # Run the blocks here, and look at what each loads and stores.
    launched = _Launched(inputs, largest)
    try:
        with ct.run_elsewhere.replaced_by(launched):
            found = unrecorded(yours)(*launched.hidden, *numbers)
    except Exception:
        yours(*inputs.values(), *numbers)  # to report an error that has nothing to do with blocks
        raise
    if launched.count > 1:
        raise AssertionError("yours launches twice; it should launch one kernel, once")
    for name in inputs:
        if name not in {place[0] for seen in launched.loaded.values() for place in seen}:
            raise AssertionError(f"{name} was loaded 0 times; each block should load its tiles")

    # Whoever computes without loading gets results of serial numbers, which are wrong.
    results = _by_name(found, expected)
    for name, right in expected.items():
        if not is_close(np.asarray(results[name]), right):
            whole = _by_name(yours(*inputs.values(), *numbers), expected)
            same(whole[name], right, name, axes[name], tolerance=1e-11)
            raise AssertionError(
                f"{name} is right only if entries are read without ct.load; a block should use\n"
                "nothing of the arrays except the tiles that it loads"
            )

    # The results are right, so their values say which entries a block has stored.
    places = _places(results)
    tiles = [(block, "stored", _found(places, entries)) for block, entries in launched.stored]
    if missing := set(places.values()).difference(*(seen for *_, seen in tiles)):
        raise AssertionError(f"{_text(min(missing))} was not stored by a block; it should be")

    # No tile is too large, and each block loads exactly what its results need.
    common = {letter for name in inputs for letter in axes[name].split()}
    own = {letter: length for letter, length in tile.items() if letter in common}
    for block, verb, seen in [*tiles, *((b, "loaded", seen) for b, seen in launched.tiles)]:
        _require_size(f"block {block} {verb} a tile with", seen, axes, tile)
    for block, loaded in launched.loaded.items():
        stored = set[Place]().union(*(seen for b, _, seen in tiles if b == block))
        _require_size(f"block {block} stored tiles with", stored, axes, own)
        _require_loads(block, inputs, loaded, stored, axes)


def _by_name(found: Any, expected: Iterable[str]) -> dict[str, Any]:
    names = list(expected)
    return named(found, names) if len(names) > 1 else {names[0]: found}


class _Launched:
    """Runs the blocks of a launch, and records what they load and store. `inputs` has the arrays by
    name, and `largest` is as for `same_in_blocks`.

    hidden  the inputs with serial numbers in place of their entries
    count   how many launches there were
    loaded  the entries that each block loaded
    tiles   for each tile that was loaded, the block and the tile's entries, without repetitions
    stored  for each tile that was stored, the block and the tile's values, without repetitions

    The blocks run in any order; after the launch, `loaded`, `tiles` and `stored` are sorted by
    block.
    """

    def __init__(self, inputs: Mapping[str, np.ndarray], largest: int | None) -> None:
        self._largest = largest
        self._entries = np.concatenate([x.ravel() for x in inputs.values()])
        serial = iter(_FIRST + np.arange(float(self._entries.size)))
        self.hidden = [np.fromiter(serial, float, x.size).reshape(x.shape) for x in inputs.values()]
        self._places = _places(dict(zip(inputs, self.hidden, strict=True)))
        self.count = 0
        self.loaded: dict[Any, set[Place]] = {}
        self.tiles: dict[tuple[Any, frozenset[Place]], None] = {}
        self.stored: dict[tuple[Any, frozenset[float]], None] = {}

    def __call__(self, grid: Any, arrays: Any, run: Callable[..., Any]) -> list[Any]:
        from ...kernels import numpy_tile as ct

        self.count += 1
        if math.prod(grid) > _MOST:
            raise ValueError(f"a grid of {tuple(grid)} has more blocks than there are tiles")

        # A load reads the same tile twice: its serial numbers, to note them, and its entries.
        serial = [ct.Memory(x) for x in arrays]
        memories = [ct.Memory(self._with_entries(x)) for x in arrays]
        block = ()
        changed = set[int]()

        def load(k: int, index: Any, shape: Any, order: Any, mode: str) -> np.ndarray:
            _require_few(shape)
            numbers = serial[k].load(index, shape, order, "ZERO")
            seen = _found(self._places, numbers.ravel().tolist())
            self.loaded[block].update(seen)
            self.tiles[block, seen] = None
            return memories[k].load(index, shape, order, mode)

        def store(k: int, index: Any, tile: Any, order: Any) -> None:
            _require_few(tile.shape)
            memories[k].store(index, tile, order)
            self.stored[block, frozenset(tile.ravel().tolist())] = None
            changed.add(k)

        def run_block(number: Any) -> None:
            nonlocal block
            block = number[: len(grid)]
            self.loaded[block] = set()
            run(number, pairs, self._largest)

        pairs = [(partial(load, k), partial(store, k)) for k in range(len(arrays))]
        ct.run_blocks(grid, run_block)
        self.loaded = dict(sorted(self.loaded.items()))
        self.tiles = dict.fromkeys(sorted(self.tiles, key=itemgetter(0)))
        self.stored = dict.fromkeys(sorted(self.stored, key=itemgetter(0)))
        return [[k, memories[k].entries] for k in sorted(changed)]

    def _with_entries(self, serial: np.ndarray) -> np.ndarray:
        """Return a copy of an array in which each serial number is replaced by the entry that it
        stands for. The serial numbers may be in any order; other numbers stay as they are."""
        array = serial.copy()
        known = np.isin(array, _FIRST + np.arange(self._entries.size, dtype="int64"))
        array[known] = self._entries[array[known].astype("int64") - _FIRST]
        return array


def _require_few(shape: Any) -> None:
    if math.prod(shape) > _MOST:
        raise ValueError(f"a tile of shape {tuple(shape)} is too large")


def _places(arrays: Mapping[str, Any]) -> dict[float, Place]:
    """Return a dictionary from each value in these arrays to its position: the name of the array,
    and the index. If the value occurs several times, this is its last position."""
    pairs = ((name, np.asarray(x)) for name, x in arrays.items())
    return {x[at].item(): (name, at) for name, x in pairs for at in np.ndindex(x.shape)}


def _found(places: Mapping[float, Place], values: Iterable[float]) -> frozenset[Place]:
    return frozenset(places[value] for value in values if value in places)


def _along(entries: Iterable[Place], axes: Mapping[str, str], letter: str) -> set[int]:
    """Return the set of the indices that these entries have along the axis with this letter, such
    as "T". Entries of an array without such an axis do not count. `axes` has the letters of each
    array's axes, by the name of the array: {"x": "T D"}."""
    return {
        i
        for name, at in entries
        for other, i in zip(axes[name].split(), at, strict=True)
        if other == letter
    }


def _require_size(
    what: str, seen: Iterable[Place], axes: Mapping[str, str], tile: Mapping[str, int]
) -> None:
    for letter, length in tile.items():
        if (found := len(_along(seen, axes, letter))) > length:
            raise AssertionError(
                f"{what} {found} entries along {letter}; it should have at most {length}"
            )


def _require_loads(
    block: Any, inputs: Mapping[str, np.ndarray], loaded: set[Place], stored: set[Place],
    axes: Mapping[str, str],
) -> None:  # fmt: skip
    """Raise AssertionError unless the entries that a block loaded are exactly those on which the
    entries that it stored depend.

    block           the block's index in the grid, for the message
    inputs, axes    as for `same_in_blocks`
    loaded, stored  the entries that the block loaded from the inputs, and those of the results that
                    it stored
    """
    of_results = {letter for name, _ in stored for letter in axes[name].split()}
    own = {letter: _along(stored, axes, letter) for letter in of_results}
    needed = {
        (name, at)
        for name, x in inputs.items()
        for at in np.ndindex(x.shape)
        if stored
        and all(i in own.get(letter, {i}) for letter, i in zip(axes[name].split(), at, strict=True))
    }
    if missing := needed - loaded:
        raise AssertionError(
            f"block {block} did not load {_text(min(missing))}, which its results need; it should"
        )
    if extra := loaded - needed:
        raise AssertionError(
            f"block {block} loaded {_text(min(extra))}, which its results do not need; it should "
            "load what they need"
        )


def _text(place: Place) -> str:
    name, at = place
    return f"{name}[{', '.join(map(str, at))}]"

"""Which ranks receive the keys of a rank, and which tiles of scores a rank computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from minimha_autograd import backend
from minimha_autograd.backend import Array, namespace

from .. import masks
from ..masks.mask import AnyMask
from ..masks.queries import typed
from .collectives import exchanged, in_turn, parts
from .places import lengths, require_one_each, runs

LENGTH = 1024
"""The largest number of keys that travel together, and of queries that attend to them at a time: it
limits the memory that a rank needs."""


def pieces(length: int, size: int, zigzag: bool = False) -> int:
    """The number of pieces into which each rank divides its keys, to send them one after another.

    length  S, the number of keys of the whole sequence
    size    the number of ranks
    zigzag  whether the ranks hold the positions that `runs` gives them with zigzag=True
    """
    return -(-max(lengths(length, size, zigzag)) // LENGTH)


class Tile(NamedTuple):
    """A rectangle of the score matrix: the scores of consecutive queries of one rank and
    consecutive keys of the same or another rank."""

    rows: slice  # where the queries are in the arrays of the rank that holds them
    columns: slice  # where the keys are in the arrays of the rank that holds them
    queries: slice  # where the queries are in the whole sequence
    keys: slice  # where the keys are in the whole sequence
    full: bool  # whether every query sees every key


class Route:
    """The route on which the keys of each rank travel round the ring.

    The rank that holds a key's position is the key's owner. Keys start at their owner and are sent
    only to ranks with queries that may see them. The owner and these ranks are their stops. Each
    message is a block: the keys and values of one key head in one piece of the owner's positions.
    All ranks create their Routes together, each with its communicator, its own parts of queries and
    keys, and the mask and zigzag of `ring_attention`.

    shape   of the scores of the whole sequence, (…, H, T, S)
    owners  the owners whose keys stop at this rank: the rank itself, then the others in the order
            in which it receives their keys
    pieces  the number of pieces into which each rank divides its keys
    """

    def __init__(self, comm: Any, query: Array, key: Array, mask: AnyMask, zigzag: bool) -> None:
        self._comm = comm
        t, s = _whole_lengths(comm, query, key, mask, zigzag)
        self.shape = (*query.shape[:-2], t, s)
        self._mask = masks.sliding_window(None, None, offset=0)  # everything is visible
        if mask is not None:
            self._mask = typed(mask, self.shape)

        # Which positions each rank holds.
        queries = runs(t, comm.size, zigzag)
        self._keys = runs(s, comm.size, zigzag)
        self._lengths = lengths(s, comm.size, zigzag)
        self.pieces = pieces(s, comm.size, zigzag)

        # The tiles of every rank, because this one must know where keys stop.
        tiles = [self._tiles_of(runs_of_rank) for runs_of_rank in queries]
        self._tiles = tiles[comm.rank]

        # Keys move to the right, and pass by ranks that see none of them.
        self._stops: list[list[int]] = []
        for owner in range(comm.size):
            stops = [owner]
            for hop in range(1, comm.size):
                rank = (owner + hop) % comm.size
                if tiles[rank][owner]:
                    stops.append(rank)
            self._stops.append(stops)

        # So the keys of the left neighbour arrive first.
        self.owners: list[int] = []
        for hop in range(comm.size):
            owner = (comm.rank - hop) % comm.size
            if comm.rank in self._stops[owner]:
                self.owners.append(owner)

    def receive(self, owner: int, *own: Array) -> list[Array]:
        """The keys and values of an owner's next block and, if `own` has four arrays, the sums of
        the gradients that earlier stops contributed to them.

        own  this rank's own arrays, which are returned if it is the owner. Otherwise the arrays are
             received from the stop before this rank
        """
        if owner == self._comm.rank:
            return list(own)
        before, _ = self._neighbours(owner)
        # An owner sends no gradients: those of its keys and values begin with zeros.
        if before == owner:
            arrived = [self._comm.recv(before), self._comm.recv(before)]
            return arrived + [namespace(x).zeros_like(x) for x in arrived[: len(own) - 2]]
        return [self._comm.recv(before) for _ in own]

    def send_on(self, owner: int, *arrays: Array) -> None:
        """Send arrays, the keys and values of an owner's block and perhaps their gradients, to the
        stop after this rank. The last stop sends the gradients alone, back to the owner."""
        _, after = self._neighbours(owner)
        if after != self._comm.rank:
            for x in arrays[2:] if after == owner else arrays:
                self._comm.send(x, after)

    def collect(self, *gradients: Array) -> None:
        """Receive the gradients of this rank's own keys and values from their last stop, and add
        them in place to the given arrays, which hold this rank's own contributions."""
        last, _ = self._neighbours(self._comm.rank)
        if last != self._comm.rank:
            for dx in gradients:
                dx[...] += self._comm.recv(last)

    def _neighbours(self, owner: int) -> tuple[int, int]:
        """The stops before and after this rank on the way of an owner's keys. The stops form a
        ring: before the owner comes the last stop, and after the last stop comes the owner."""
        stops = self._stops[owner]
        here = stops.index(self._comm.rank)
        return stops[here - 1], stops[(here + 1) % len(stops)]

    def piece(self, owner: int, n: int) -> slice:
        """The slice of an owner's arrays that holds piece n of its keys."""
        return parts(self._lengths[owner], self.pieces)[n]

    def tiles(
        self, owner: int, n: int, heads: slice
    ) -> Iterator[tuple[slice, slice, masks.Mask | None]]:
        """Yield (rows, columns, mask) for each tile of scores between this rank's queries and piece
        n of an owner's keys.

        heads          a slice of the query heads: the mask may differ between heads
        rows, columns  slices of this rank's queries and of the keys in the piece
        mask           the part of the mask for this tile and these heads, or None if every query of
                       the tile sees every key of it
        """
        piece = self.piece(owner, n)
        for tile in self._tiles[owner]:
            # The columns of the tile that are in this piece.
            start = max(tile.columns.start, piece.start)
            stop = min(tile.columns.stop, piece.stop)
            columns = slice(start, stop)
            if start >= stop:
                continue

            for first in range(tile.rows.start, tile.rows.stop, LENGTH):
                rows = slice(first, min(first + LENGTH, tile.rows.stop))
                mask = None
                if not tile.full:
                    queries = _moved(rows, tile.queries.start - tile.rows.start)
                    keys = _moved(columns, tile.keys.start - tile.columns.start)
                    mask = self._mask.part(self.shape, queries, keys, heads)
                yield rows, _moved(columns, -piece.start), mask

    def _tiles_of(self, query_runs: list[slice]) -> list[list[Tile]]:
        """The tiles that a rank with these runs of queries has to compute: a list for each owner of
        keys. The mask gives each query an interval, the range [start, stop) that holds all keys
        which the query may see. A tile is left out if none of its keys lies in the interval of any
        of its queries."""
        tiles: list[list[Tile]] = [[] for _ in self._keys]
        for rows, queries in _placed(query_runs):
            part = self._mask.part(self.shape, queries, slice(None))
            t, s = queries.stop - queries.start, self.shape[-1]
            like = (backend.full((*self.shape[:-2], n, 0), 0, dtype="float32") for n in (t, s))
            start, stop, inside = masks.key_intervals(part, *like)  # type: ignore[misc]
            for owner, key_runs in enumerate(self._keys):
                for columns, keys in _placed(key_runs):
                    if (start.clip(min=keys.start) < stop.clip(max=keys.stop)).any():
                        all_seen = (start <= keys.start).all() and (stop >= keys.stop).all()
                        full = inside is None and bool(all_seen)
                        tiles[owner].append(Tile(rows, columns, queries, keys, full))
        return tiles


def _whole_lengths(comm: Any, query: Array, key: Array, mask: Any, zigzag: bool) -> list[int]:
    """T and S of the whole sequence, of which `query` and `key` are this rank's parts. The ranks
    exchange the lengths of their parts.

    Raises ValueError if a rank holds other numbers of queries or keys than `part` gives it;
    CommunicationError if the ranks differ in the kind of their arrays, in the mask or in zigzag.
    """
    shapes = ", ".join(f"(…, {x.shape[-3]}, ·, {x.shape[-1]})" for x in (query, key))
    shown = mask if mask is None or isinstance(mask, masks.Mask) else "an array"
    what = f"ring_attention of {query.dtype} {shapes}, mask {shown}, zigzag {zigzag}"
    own = backend.asarray([query.shape[-2], key.shape[-2]])
    own = namespace(own).astype(own, namespace(own).int64)  # NumPy makes int32 in a browser
    held = [x.tolist() for x in exchanged(comm, what, [own] * comm.size)]
    for name, have in zip(("queries", "keys"), zip(*held, strict=True), strict=True):
        require_one_each(comm.size, sum(have), name)
        due = lengths(sum(have), comm.size, zigzag)
        if due != list(have):
            raise ValueError(
                f"the ranks hold {', '.join(map(str, have))} {name}, but their parts are "
                f"{', '.join(map(str, due))}: cut arrays with mh.parallel.part(…, zigzag={zigzag})"
            )
    return [sum(have) for have in zip(*held, strict=True)]


def _moved(run: slice, by: int) -> slice:
    return slice(run.start + by, run.stop + by)


def _placed(held: list[slice]) -> list[tuple[slice, slice]]:
    """A pair of slices for each of the runs of positions that a rank holds: where the run is in the
    rank's own arrays, in which its runs lie side by side, and where it is in the whole sequence."""
    return list(zip(in_turn(run.stop - run.start for run in held), held, strict=True))

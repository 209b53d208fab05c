"""The cache of keys and values, for decoding step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minimha_autograd import Tensor, array_of, ops
from minimha_autograd.backend import Array, namespace
from minimha_autograd.modes import modes

from ..functional.checks import integer
from ..masks import Mask, causal, dense, prefix, sliding_window
from ..masks.mask import AnyMask
from ..masks.queries import typed


class KeyValueCache:
    """The keys and values of the positions so far, for decoding step by step.

        cache = mh.KeyValueCache()
        for x in tokens:                      # (…, 1, M) each, or several at a time
            y = mha(x, mask=mh.masks.causal(), cache=cache)

    window   how many positions each query sees at most: its own and those before it; None for all.
             The cache hides the others, in addition to the mask of the call, and evicts those that
             no later query sees
    sinks    with a window, how many of the first positions all later queries also see
    reserve  with a window, how far `rewind` can go back: this many positions before the newest so
             far. The cache waits until it can evict more positions than this at once, and copies
             the others then, so a larger reserve means less copying

    One cache serves one layer and one run through a sequence. `len(cache)` is the number of
    positions so far, including evicted ones. The attribute `evicted` is the number of evicted
    positions, the first ones after the sinks. With a window, the cache holds at most window − 1 +
    sinks + 2 · reserve positions between two calls. For rope, alibi and masks, the keys keep their
    positions in the whole sequence. Within `no_grad`, new keys and values are written to memory
    reserved for them, so that on average appending costs the same however many there are. Outside
    it, gradients flow through the cache, and each step copies all keys and values.
    Source of the sinks: Xiao et al., "Efficient Streaming Language Models with Attention Sinks"
    (2023), which counts positions within the cache instead.
    """

    def __init__(
        self,
        window: int | None = None,
        *,
        sinks: int = 0,
        reserve: int = 0,
    ) -> None:
        self.window: int | None = None
        if window is not None:
            self.window = integer(window, "window", least=1)
        self.sinks = integer(sinks, "sinks", least=0)
        self.reserve = integer(reserve, "reserve", least=0)

        self.near: Mask | None = None
        if self.window is not None:
            self.near = window_mask(self.window, self.sinks)

        # Of S positions so far, S − evicted are held: the sinks, and those after the evicted ones.
        self.evicted = 0
        self.keys: Any = None  # (…, G, S − evicted, D)
        self.values: Any = None  # (…, G, S − evicted, Dv)
        self._reserved: dict[str, Reserved] = {}

    def __len__(self) -> int:
        if self.keys is None:
            return 0
        held = int(self.keys.shape[-2])
        return self.evicted + held

    def __copy__(self) -> KeyValueCache:
        """A cache that continues independently: neither writes to the memory that both share."""
        copied = object.__new__(KeyValueCache)
        vars(copied).update(vars(self))

        # Without reserved memory, each copies what it holds before it appends.
        self._reserved = {}
        copied._reserved = {}
        return copied

    def joined(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """The keys (…, G, S, D) and values (…, G, S, Dv) held, with the new ones appended; the
        cache itself does not change.

        Raises ValueError if the batch size, the number of heads or their width differs from earlier
        calls.
        """
        if self.keys is None:
            return keys, values
        for old, new in ((self.keys, keys), (self.values, values)):
            # Only the number of positions may differ.
            same_heads = old.shape[:-2] == new.shape[:-2]  # batch and heads
            same_width = old.shape[-1] == new.shape[-1]
            if not (same_heads and same_width):
                raise ValueError(
                    f"the cache holds (…, G, S, D) {tuple(old.shape)} and is given "
                    f"{tuple(new.shape)}: a new sequence or layer needs a new cache"
                )
        keys = self._appended("keys", self.keys, keys)
        values = self._appended("values", self.values, values)
        return keys, values

    def mask(self, mask: AnyMask, queries: Sequence[int]) -> AnyMask:
        """The mask for attention between new queries and the keys that `joined` returns; None if
        there is neither a mask nor a window.

        mask     that of the call, for the whole sequence; with a window, the result also hides what
                 the window hides, and leaves out the columns of evicted keys
        queries  the shape (…, H, T, D) of the new queries, the last positions of the sequence
        """
        past = len(self)
        if self.near is not None:
            length = past + queries[-2]
            whole = (*queries[:-1], length)  # (…, H, T, S)
            near = self.near
            if mask is not None:
                near = typed(mask, whole) & near
            if self.evicted:
                return self._without_evicted(near.at(past), whole)
            mask = near

        # The new queries are the last positions of the sequence.
        if isinstance(mask, Mask):
            return mask.at(past)
        return mask

    def _without_evicted(self, mask: Mask, whole: Sequence[int]) -> Mask:
        """Return a mask without the columns of evicted keys. The given mask is for scores of the
        shape `whole`, (…, H, T, S), where S counts all positions."""
        every_query = slice(None)
        columns = []
        for held in self._held:
            part = mask.part(whole, every_query, held)
            columns.append(part.array(part.sizes, like=self.keys))
        xp = namespace(*columns)
        return dense(xp.concat(columns, axis=-1))  # (…, T, keys held)

    def held(self, x: Any) -> Any:
        """The entries of x (…, S) for the keys held, where S counts all positions. An x whose last
        axis has length 1, one entry for all keys, is returned as it is; so is None."""
        if x is None or not self.evicted:
            return x
        if x.shape[-1] == 1:
            return x
        first, recent = self._held
        of_sinks = x[..., first]  # (…, sinks)
        of_others = x[..., recent]  # (…, S − evicted − sinks)
        return ops.concat(of_sinks, of_others, axis=-1)

    def store(self, keys: Any, values: Any) -> None:
        """Hold the keys and values that `joined` returned, without the positions that no later
        query sees."""
        self.keys = keys
        self.values = values
        if self.window is None:
            return

        # The next query sees window − 1 positions before it; after a rewind, it may be one of the
        # `reserve` positions before that. Eviction copies what stays, so it waits until there are
        # `reserve` more.
        held = int(keys.shape[-2])
        recent = self.window - 1 + self.reserve
        kept = self.sinks + recent
        if held > kept + self.reserve:
            self.evicted += held - kept
            self.keys = self._shortened(keys, recent)
            self.values = self._shortened(values, recent)
            self._reserved = {}

    def _shortened(self, x: Any, recent: int) -> Any:
        """The entries of x (…, G, S, D) for the sinks and for as many of the most recent positions
        as `recent` says."""
        start = x.shape[-2] - recent
        first = x[..., : self.sinks, :]  # (…, G, sinks, D)
        last = x[..., start:, :]  # (…, G, recent, D)
        return ops.concat(first, last, axis=-2)

    def rewind(self, n: int) -> None:
        """Forget the newest n positions, as if they had never been given.

        Raises ValueError if the cache has fewer positions. If positions are evicted, it also does
        so if fewer than window − 1 of those after the sinks would be left, since the next query may
        need them.
        """
        n = integer(n, "rewind: n", least=0)
        most = len(self)
        if n > most:
            raise ValueError(f"rewind: n = {n} is more than the {most} positions in the cache")

        # After the rewind, the next query must find the window − 1 positions before it.
        if self.window is not None and self.evicted:
            recent = self.keys.shape[-2] - self.sinks
            most = recent - (self.window - 1)
        if n > most:
            raise ValueError(
                f"rewind: n = {n} is more than {most}: the positions before those are evicted; "
                "give the cache a larger reserve"
            )

        if n:
            self.keys = self._rewound("keys", self.keys, n)
            self.values = self._rewound("values", self.values, n)

    def _rewound(self, name: str, held: Any, n: int) -> Any:
        """The keys or values held, (…, G, S, D), without the last n positions: name is "keys" or
        "values". Positions appended later overwrite these n if all are in reserved memory."""
        end = held.shape[-2] - n
        kept = held[..., :end, :]  # (…, G, S − n, D)
        reserved = self._reserved.get(name)
        if reserved is not None and reserved.used is held:
            self._reserved[name] = Reserved(reserved.memory, kept)
        return kept

    @property
    def _held(self) -> tuple[slice, slice]:
        """The positions that are not evicted, as two slices of all positions: the sinks and the
        recent positions."""
        first = slice(0, self.sinks)
        recent = slice(self.sinks + self.evicted, None)
        return first, recent

    def _appended(self, name: str, old: Any, new: Any) -> Any:
        """The arrays old (…, G, S, D) and new (…, G, T, D), joined along the axis of the positions:
        within `no_grad` in memory that is reserved for name, "keys" or "values"."""
        # Outside no_grad, a pullback may have saved what would be overwritten after a rewind.
        if not modes.get().no_grad:
            return ops.concat(old, new, axis=-2)

        x = array_of(new)
        past = old.shape[-2]
        total = past + x.shape[-2]
        memory = None
        reserved = self._reserved.get(name)
        if reserved is not None and reserved.used is old:
            memory = reserved.memory
        if memory is None or memory.shape[-2] < total:
            # Twice as many positions as needed: on average, each key is then copied once.
            memory = _reserve(x, 2 * total)
            memory[..., :past, :] = array_of(old)

        # Appending is writing behind what is there, and looking at one more position.
        memory[..., past:total, :] = x
        joined = memory[..., :total, :]  # (…, G, S, D)
        if isinstance(new, Tensor):
            joined = Tensor(joined)
        self._reserved[name] = Reserved(memory, joined)
        return joined


class Reserved(NamedTuple):
    """Memory for more positions than there are so far, and the part of it in use.

    A cache appends to the memory only while it still holds the array `used`. If, for example, keys
    were appended outside `no_grad`, it holds another array, and reserves new memory for the next
    ones within `no_grad`.
    """

    memory: Array  # (…, G, more than S, D)
    used: Any  # (…, G, S, D)


def _reserve(x: Array, positions: int) -> Array:
    """Uninitialised memory like x (…, G, S, D), but for this many positions in place of S."""
    xp = namespace(x)
    *batch, heads, _, width = x.shape
    shape = (*batch, positions, heads, width)
    empty = xp.empty(shape, dtype=x.dtype, device=x.device)

    # In memory the positions come before the heads, as in what a projection makes: kernels then
    # read all of it without a copy.
    return xp.moveaxis(empty, -2, -3)  # (…, G, positions, D)


def window_mask(window: int, sinks: int = 0) -> Mask:
    """A mask under which each query sees itself and the `window` − 1 positions before it, and also
    those of the first `sinks` positions of the sequence that come before it."""
    window = integer(window, "window", least=1)
    sinks = integer(sinks, "sinks", least=0)
    near = sliding_window(window - 1, 0)
    if not sinks:
        return near
    return near | (causal() & prefix(sinks))

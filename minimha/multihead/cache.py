"""The cache of keys and values, for decoding step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
             far. The cache evicts more than this number at a time, so a larger reserve means less
             copying

    One cache serves one layer and one run through a sequence. `len(cache)` is the number of
    positions so far; `evicted` of them, those after the sinks, are no longer held. Between two
    calls, at most window − 1 + sinks + 2 · reserve are held. For rope, alibi and masks, they keep
    their positions in the whole sequence. Within `no_grad`, new keys are written to memory
    reserved for them, so that on average appending costs the same however many there are. Outside
    it, gradients flow through the cache, and each step copies all keys.
    Source of the sinks: Xiao et al., "Efficient Streaming Language Models with Attention Sinks"
    (2023), which counts positions within the cache instead.
    """

    def __init__(self, window: int | None = None, *, sinks: int = 0, reserve: int = 0) -> None:
        self.window = None if window is None else integer(window, "window", least=1)
        self.sinks = integer(sinks, "sinks", least=0)
        self.near = None if self.window is None else window_mask(self.window, self.sinks)
        self.reserve = integer(reserve, "reserve", least=0)
        self.keys: Any = None
        self.values: Any = None
        self.evicted = 0
        self._reserved: dict[str, tuple[Array, Any]] = {}  # memory, and the keys or values in it

    def __len__(self) -> int:
        return 0 if self.keys is None else self.evicted + int(self.keys.shape[-2])

    def __copy__(self) -> KeyValueCache:
        """A cache that continues on its own: neither writes to the memory that they share."""
        copied = object.__new__(KeyValueCache)
        self._reserved = {}
        vars(copied).update(vars(self), _reserved={})
        return copied

    def joined(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """The keys (…, G, S, D) and values (…, G, S, Dv) held, with the new ones appended; the
        cache itself does not change.

        Raises ValueError if the batch size or the number of heads differs from earlier calls.
        """
        if self.keys is None:
            return keys, values
        for old, new in ((self.keys, keys), (self.values, values)):
            if (*old.shape[:-2], old.shape[-1]) != (*new.shape[:-2], new.shape[-1]):
                raise ValueError(
                    f"the cache holds (…, G, S, D) {tuple(old.shape)} and is given "
                    f"{tuple(new.shape)}: a new sequence or layer needs a new cache"
                )
        joined = self._appended("keys", self.keys, keys)
        return joined, self._appended("values", self.values, values)

    def mask(self, mask: AnyMask, queries: Sequence[int]) -> AnyMask:
        """A mask of the whole sequence, cut for new queries of this shape (…, H, T, D) and for the
        keys that `joined` returns."""
        past = len(self)
        if self.near is not None:
            whole = (*queries[:-1], past + queries[-2])
            mask = self.near if mask is None else typed(mask, whole) & self.near
            if self.evicted:
                parts = (mask.at(past).part(whole, slice(None), keys) for keys in self._held)
                arrays = [part.array(part.sizes, like=self.keys) for part in parts]
                return dense(namespace(*arrays).concat(arrays, axis=-1))
        return mask.at(past) if isinstance(mask, Mask) else mask

    def held(self, x: Any) -> Any:
        """The entries of x (…, S) for the keys held, where S counts all positions. None, and a last
        axis of length 1, are left as they are."""
        if x is None or not self.evicted or x.shape[-1] == 1:
            return x
        return ops.concat([x[..., places] for places in self._held], axis=-1)

    def store(self, keys: Any, values: Any) -> None:
        """Hold what `joined` returned, without what no later query sees."""
        self.keys, self.values, held = keys, values, int(keys.shape[-2])
        if self.window is None:
            return
        recent = self.window - 1 + self.reserve
        if held > self.sinks + recent + self.reserve:
            self.evicted += held - self.sinks - recent
            self.keys, self.values = (
                ops.concat(x[..., : self.sinks, :], x[..., held - recent :, :], axis=-2)
                for x in (keys, values)
            )
            self._reserved = {}

    def rewind(self, n: int) -> None:
        """Forget the newest n positions, as if they had never been given.

        Raises ValueError if there are fewer, or if too many of those before them are evicted.
        """
        n, most = integer(n, "rewind: n", least=0), len(self)
        if n > most:
            raise ValueError(f"rewind: n = {n} is more than the {most} positions in the cache")
        if self.window is not None and self.evicted:
            most = self.keys.shape[-2] - self.sinks - (self.window - 1)
        if n > most:
            raise ValueError(
                f"rewind: n = {n} is more than {most}: the positions before those are evicted; "
                "give the cache a larger reserve"
            )
        for name in ("keys", "values") if n else ():
            held = getattr(self, name)
            kept = held[..., : held.shape[-2] - n, :]
            if (reserved := self._reserved.get(name)) and reserved[1] is held:
                self._reserved[name] = reserved[0], kept
            setattr(self, name, kept)

    @property
    def _held(self) -> tuple[slice, slice]:
        """The positions that are not evicted."""
        return slice(0, self.sinks), slice(self.sinks + self.evicted, None)

    def _appended(self, name: str, old: Any, new: Any) -> Any:
        """old followed by new along the positions, both (…, G, ·, D)."""
        if not modes.get().no_grad:  # a pullback may have saved what rewinding overwrites
            return ops.concat(old, new, axis=-2)
        past, total, x = old.shape[-2], old.shape[-2] + new.shape[-2], array_of(new)
        reserved, latest = self._reserved.get(name, (None, None))
        if reserved is None or latest is not old or reserved.shape[-2] < total:
            # twice as many as needed, so that on average each key is copied once; in memory the
            # positions come before the heads, so that kernels read them where they are
            xp, (*batch, heads, _, width) = namespace(x), x.shape
            empty = xp.empty((*batch, 2 * total, heads, width), dtype=x.dtype, device=x.device)
            reserved = xp.moveaxis(empty, -2, -3)
            reserved[..., :past, :] = array_of(old)
        reserved[..., past:total, :] = x
        joined = reserved[..., :total, :]
        joined = Tensor(joined) if isinstance(new, Tensor) else joined
        self._reserved[name] = reserved, joined
        return joined


def window_mask(window: int, sinks: int = 0) -> Mask:
    """Each query sees itself, the `window` − 1 positions before it and, of the first `sinks`
    positions, those before it."""
    near = sliding_window(integer(window, "window", least=1) - 1, 0)
    return near | (causal() & prefix(sinks)) if integer(sinks, "sinks", least=0) else near

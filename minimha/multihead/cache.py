"""The cache of keys and values, for decoding step by step."""

from __future__ import annotations

from typing import Any

from minimha_autograd import Tensor, array_of, ops
from minimha_autograd.backend import Array, namespace


class KeyValueCache:
    """The keys and values of the positions so far, for decoding step by step.

        cache = mh.KeyValueCache()
        for x in tokens:                      # (…, 1, M) each, or several at a time
            y = mha(x, mask=mh.masks.causal(), cache=cache)

    One cache serves one layer and one run through a sequence. `len(cache)` is the number of
    positions. Within `no_grad`, new keys are written to memory reserved for them, so that
    appending costs the same however many there are. Outside it, gradients flow through the cache,
    and each step copies all keys.
    """

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None
        self._reserved: dict[str, Array] = {}  # arrays whose first positions are keys, and values

    def __len__(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[-2])

    def __copy__(self) -> KeyValueCache:
        """A cache that continues on its own: it shares no reserved memory."""
        copied = KeyValueCache()
        copied.keys, copied.values = self.keys, self.values
        return copied

    def joined(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """All keys (…, G, S, D) and values (…, G, S, Dv), with the new ones appended; the cache
        itself does not change.

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

    def _appended(self, name: str, old: Any, new: Any) -> Any:
        """old followed by new along the positions, both (…, G, ·, D)."""
        if any(isinstance(x, Tensor) and x.requires_grad for x in (old, new)):
            return ops.concat(old, new, axis=-2)
        past, total, x = old.shape[-2], old.shape[-2] + new.shape[-2], array_of(new)
        reserved = self._reserved.get(name)
        if reserved is None or reserved.shape[-2] < total:
            # twice as many as needed: on average each key is copied once
            shape = (*x.shape[:-2], 2 * total, x.shape[-1])
            reserved = namespace(x).empty(shape, dtype=x.dtype, device=x.device)
            reserved[..., :past, :] = array_of(old)
            self._reserved[name] = reserved
        reserved[..., past:total, :] = x
        joined = reserved[..., :total, :]
        return Tensor(joined) if isinstance(new, Tensor) else joined

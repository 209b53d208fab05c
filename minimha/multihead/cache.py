"""The cache of keys and values, for decoding step by step."""

from __future__ import annotations

from typing import Any

from minimha_autograd import ops


class KeyValueCache:
    """The keys and values of the positions so far, for decoding step by step.

        cache = mh.KeyValueCache()
        for x in tokens:                      # (…, 1, M) each, or several at a time
            y = mha(x, mask=mh.masks.causal(), cache=cache)

    One cache serves one layer and one run through a sequence. With Tensors, gradients flow
    through it, so decode within `no_grad`. `len(cache)` is the number of positions.
    """

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    def __len__(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[-2])

    def joined(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """All keys (…, G, S, D) and values (…, G, S, Dv), with the new ones appended; the cache
        itself does not change.

        Raises ValueError if the batch size or the number of heads differs from earlier calls.
        """
        if self.keys is not None:
            for old, new in ((self.keys, keys), (self.values, values)):
                if (*old.shape[:-2], old.shape[-1]) != (*new.shape[:-2], new.shape[-1]):
                    raise ValueError(
                        f"the cache holds (…, G, S, D) {tuple(old.shape)} and is given "
                        f"{tuple(new.shape)}: a new sequence or layer needs a new cache"
                    )
            keys = ops.concat(self.keys, keys, axis=-2)
            values = ops.concat(self.values, values, axis=-2)
        return keys, values

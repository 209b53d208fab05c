"""A training run that several ranks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import interchange, parallel
from ..functional import cross_entropy
from ..nn import AdamW, clip_gradients, decay_groups
from . import checkpoint
from .loop import Training, tokens_for


class ParallelTraining(Training):
    """A `Training` whose steps several ranks share; every rank makes the same calls.

        def train(comm):
            model = mh.GPT(…)
            return list(ParallelTraining(model, tokens, comm=comm, way="ring", steps=2000, …))

        losses = mh.parallel.run(train, 4)[0]

    comm   this rank's communicator
    way    "data", "heads", "ulysses" or "ring": see `parallel.WAYS`
    every  after how many steps the whole model and the state of the optimiser are collected from
           all ranks, by default a tenth of all steps, as for `watch`. Only then, and after the last
           step, can they be read and saved

    The other arguments are those of `Training`, with a GPT as the model. Without dropout, losses,
    weights and checkpoints are those of one process, up to rounding, which a long run may amplify.
    In a model that has no rotary positions, no qk_norm and no softcap, the true gradient of b_k,
    the bias of the keys, is 0, so its computed gradient is nothing but rounding, and b_k may differ
    in every digit. A run can be resumed with another number of ranks, another way, or as a
    `Training`. Rank 0 writes the checkpoints; every rank must be able to read them. Each rank draws
    its own dropout.

    Raises ValueError for an unknown way, for dropout in a way other than "data", and for more ranks
    than there are parts to share: sequences for "data", key heads for "heads", positions for
    "ring", and either of the last two for "ulysses".
    """

    def __init__(
        self,
        model: Any,
        tokens: np.ndarray,
        *,
        comm: Any,
        way: str = "data",
        every: int | None = None,
        **settings: Any,
    ) -> None:
        if way not in parallel.WAYS:
            raise ValueError(f"way = {way!r}: there are {', '.join(parallel.WAYS)}")
        if model.settings["dropout"] and way != "data":
            raise ValueError(
                f"dropout works only with the way 'data': ranks of {way!r} would draw "
                "different masks"
            )
        self.comm, self.way = comm, parallel.WAYS[way](comm, model)
        super().__init__(model, tokens, **settings)
        self.way.part(np.empty((self.batch, model.context)))  # raises for too many ranks
        weights = checkpoint.checksum(interchange.state(model)).tobytes().hex()[:16]
        comm.agree(f"a run with weights {weights}… and the settings {self.settings}")
        self.every = every or max(1, self.steps // 10)
        self._collected: dict[str, np.ndarray] | None = None

    def save(self, path: str | Path) -> None:
        """Write a checkpoint on rank 0, as `Training.save` does; the other ranks write nothing."""
        if self.comm.rank == 0:
            super().save(path)

    def state(self) -> dict[str, np.ndarray]:
        """The arrays of a checkpoint, as `Training.state` returns them, if they were collected
        after the latest step. Raises RuntimeError otherwise."""
        if self._collected is None:
            raise RuntimeError(f"the state is collected every {self.every} steps: save it then")
        return self._collected

    def set_state(self, arrays: dict[str, np.ndarray]) -> None:
        super().set_state(arrays)
        self.way.scatter()
        self._buckets.take()
        self._collected = arrays

    def _optimiser(self, weight_decay: float, **settings: Any) -> AdamW:
        own = self.way.own
        groups = decay_groups(own, weight_decay)
        names = {p: name for name, p in own.named_parameters()}
        self._names = [names[p] for group in groups for p in group["params"]]
        split = [p for p, name in names.items() if self.way.split_axis(name) is not None]
        self._buckets = parallel.Buckets(self.comm, groups, split)
        return AdamW(self._buckets.groups, **settings)

    def _update(self, inputs: np.ndarray, targets: np.ndarray, rng: Any) -> float:
        way, rank = self.way, self.comm.rank
        self.comm.step, self._collected = self.step, None  # frees its memory
        rng = np.random.default_rng((self.seed, self.step, rank)) if rank else rng
        own_inputs, own_targets = (tokens_for(way.own, way.part(x)) for x in (inputs, targets))
        positions = way.positions(inputs.shape[1])
        if positions is not None:
            positions = tokens_for(way.own, positions)
        with way.sharing():
            logits = way.own(own_inputs, positions=positions, rng=rng)
            loss = way.fraction(inputs) * cross_entropy(logits, own_targets)
            loss.backward()
        self._buckets.reduce()
        clip_gradients(self.optimiser.parameters, self.clip, self.comm)
        self.optimiser.step()
        self._buckets.gather()
        whole = float(self.comm.all_reduce(loss.data))
        if (self.step + 1) % self.every == 0 or self.step + 1 == self.steps:
            self.way.gather()
            self._collected = {**super().state(), "step": np.asarray(self.step + 1)}
        return whole

    def _optimiser_state(self) -> dict[str, np.ndarray]:
        def joined(k: int, x: Any) -> Any:
            return self.comm.all_gather(x, self.way.split_axis(self._names[k]))

        return self._buckets.whole_state(self.optimiser.state(), joined)

    def _set_optimiser_state(self, state: dict[str, np.ndarray]) -> None:
        def cut(k: int, x: Any) -> Any:
            return self.way.cut(self._names[k], x)

        self.optimiser.set_state(self._buckets.part_of_state(state, cut))

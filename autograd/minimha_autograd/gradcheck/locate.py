"""Where a wrong gradient comes from: the node that is wrong while all computed from it is right.

A function that can be located shows its intermediates. Each is an input of what comes after it, so
its numeric gradient can be taken as that of an input can; and moving it shows what is computed from
it, at once or at length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from .. import backend
from .compare import LARGE, Compared, Target
from .subject import Subject, Tap

RESULT = "the result"


class Trace:
    """The nodes of a function at its inputs: inputs, intermediates, and the result.

    values    by name, in the order in which they are made
    targets   inputs and intermediates with the gradient under check, 0 where none is told
    told      the names whose gradient is told, and the results
    strays    names of gradients that are told of nothing that is tapped
    unused    intermediates from which nothing is computed: what tap returned was not used
    silent    whether intermediates are tapped and no gradient of any is told
    right     the numeric gradients; that of the result is the cotangent
    wrong     the names whose two gradients differ
    constants arrays of floats among the inputs that have no gradient
    """

    def __init__(
        self,
        subject: Subject,
        targets: Mapping[int, Target],
        wrong: Mapping[int, Compared | None],
    ) -> None:
        self.subject, self.located = subject, subject.can_locate
        self.targets = {target.name: target for target in targets.values()}
        self.inputs = [subject.names[k] for k in targets]
        self._places: dict[str, int | str] = {subject.names[k]: k for k in targets}
        self.wrong = [subject.names[k] for k in wrong]
        self._failed = {subject.names[k]: compared for k, compared in wrong.items() if compared}
        self._shares: dict[str, dict[str, np.ndarray]] = {}
        self.assumed: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None
        self._later: dict[str, set[str]] = {}
        # where the complex step holds for the inputs, it does for what is computed from them
        small = [t for t in self.targets.values() if t.x.size <= LARGE]
        self.analytic = bool(small) and all(t.analytic for t in small)
        base = _Snapshots()
        results = subject.evaluate(subject.hosts, base)
        self.results = [RESULT if k == 0 else f"{RESULT} {k + 1}" for k in range(len(results))]
        self.values = {subject.names[k]: x for k, x in subject.hosts.items()} | base.hosts()
        self.constants = {
            name: backend.to_numpy(x)
            for name, x in zip(subject.names, subject.arrays, strict=True)
            if name not in self.targets and backend.is_array(x) and backend.is_floating(x)
        }
        self.values |= dict(zip(self.results, results, strict=True))
        told = subject.inner_gradients() if self.located else {}
        self.strays = [str(name) for name in told if name not in base.arrived]
        self.told = {*self.inputs, *self.results, *told}
        self.silent = bool(subject.takes_tap and base.arrived and not told)
        self._judge(base.hosts(), told)

    def _judge(self, values: Mapping[str, np.ndarray], told: Mapping[str, np.ndarray]) -> None:
        """Compare the gradients of the intermediates that are told with their numeric ones."""
        subject, dtype = self.subject, self.targets[self.inputs[0]].gradient.dtype
        for name, x in values.items():
            self._places[name] = name
            gradient = np.real(told.get(name, np.zeros(x.shape)))
            if gradient.dtype != np.float32:  # which is held to what it can be
                gradient = gradient.astype(dtype)
            noise = 10 * float(np.finfo(dtype).eps) * float(abs(gradient).max(initial=0.0))
            loss, rounding = subject.loss(name), subject.rounding
            target = Target(name, x, gradient, loss, rounding, noise, confirmed=self.analytic)
            self.targets[name] = target
            if name in told and not (
                gradient.shape == x.shape and next(target.compare("adjoint")).outcome.passed
            ):
                self.wrong.append(name)
        inner = [name for name in values if name in told]
        self.unused = [name for name in inner if not self.descendants(name)]
        self.wrong = [name for name in self.wrong if name not in self.unused]

    def compared(self, name: str) -> Compared:
        """The comparison that a wrong gradient failed, of its entries rather than directions."""
        compared = self.targets[name].compare(entrywise=self.has_time_for(name))
        failed = (c for c in compared if not c.outcome.passed)
        found = next(failed, None)
        return found if found is not None else self._failed[name]

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """The right gradients by name: those that were found right, and the numeric ones of the
        nodes at fault, where there are not too many entries."""
        found = {
            name: target.gradient.astype(np.float64)
            for name, target in self.targets.items()
            if name in self.told and name not in self.wrong
        }
        numeric = {n: self.targets[n].numeric() for n in self.culprits if self.has_time_for(n)}
        results = zip(self.results, self.subject.cotangents, strict=True)
        return found | numeric | {name: c.astype(np.float64) for name, c in results}

    def has_time_for(self, name: str) -> bool:
        """Whether the entries of a node are few enough for a numeric gradient of each."""
        everything = sum(self.targets[n].x.size for n in self.inputs)
        return self.targets[name].x.size * max(everything, LARGE) <= 2 * LARGE**2

    @cached_property
    def culprits(self) -> list[str]:
        """The wrong nodes, the last made first, from which no wrong node is computed."""
        wrong = set(self.wrong)
        made = [name for name in self.values if name in wrong]
        return [name for name in reversed(made) if not wrong & self.descendants(name)]

    def descendants(self, name: str) -> set[str]:
        """The nodes that move when this one moves."""
        if name not in self._later:
            self._later[name] = self._reached(name, {})
        return self._later[name]

    def consumers(self, name: str) -> list[str]:
        """The told nodes that move with this one while all other told ones are held: those computed
        from it in one step, as far as is told."""
        reached = self._reached(name, self._held(name)) & self.told
        return [n for n in self.values if n in reached]

    def untold(self, name: str) -> list[str]:
        """The intermediates between this one and its consumers, whose gradient is not told."""
        reached = self._reached(name, self._held(name)) - self.told
        return [n for n in self.values if n in reached and self.descendants(n) & self.told]

    def _held(self, name: str) -> dict[str, np.ndarray]:
        held = self.descendants(name) & self.told - set(self.results)
        return {n: self.values[n] for n in held}

    def share(self, name: str, consumer: str) -> np.ndarray:
        """The part of a node's numeric gradient that comes through this consumer.

        All consumers' shares add up to the gradient.
        """
        known = self._shares.setdefault(name, {})
        if consumer not in known:
            place, dy = self._places[name], self.right[consumer]
            loss = self.subject.loss(place, self._held(name), (self._index(consumer), dy))
            known[consumer] = replace(self.targets[name], loss=loss, noise=0.0).numeric()
        return known[consumer]

    def _index(self, name: str) -> int | str:
        return self.results.index(name) if name in self.results else name

    def _reached(self, name: str, held: Mapping[str, np.ndarray]) -> set[str]:
        hosts, replaced = dict(self.subject.hosts), dict(held)
        moved = self._moved(self.values[name])
        place = self._places.get(name, name)
        if isinstance(place, int):
            hosts[place] = moved
        else:
            replaced[name] = moved
        tap = _Snapshots(replaced)
        results = self.subject.evaluate(hosts, tap)
        now: dict[str, Any] = tap.hosts() | dict(zip(self.results, results, strict=True))
        return {
            n
            for n, x in now.items()
            if n != name
            and n in self.values
            and not np.array_equal(x, self.values[n], equal_nan=True)
        }

    @staticmethod
    def _moved(x: np.ndarray) -> np.ndarray:
        """x with all entries moved a little, by different shares, so none leaves its domain."""
        r = np.random.default_rng(0).uniform(0.5, 1, x.shape)
        return np.asarray(np.where(x == 0, 1e-3 * r, x * (1 + 1e-3 * r)), dtype=x.dtype)


class _Snapshots(Tap):
    """A tap that keeps arrays as they are when they arrive: f may go on in the same memory."""

    def __call__(self, name: str, x: Any) -> Any:
        result = super().__call__(name, x)
        if backend.is_array(x):
            self.arrived[next(reversed(self.arrived))] = np.array(backend.to_numpy(x))
        return result

"""Where a wrong gradient comes from: the node whose gradient is wrong although the gradients of all
nodes computed from it are right.

A function can be searched if it shows its intermediates. Each intermediate is an input of what is
computed after it, so its numeric gradient can be computed like that of an input. If an intermediate
is changed a little, all nodes change that are computed from it, directly or through others.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from minimha_autograd.gradcheck.compare import Comparison
from minimha_autograd.gradcheck.failure import FailedCheck

from ..attention import attention_steps
from .arrays import matmul, through_softmax
from .closeness import is_rounded

RESULT = "the result"


class Trace:
    """The nodes of a function, with their values and gradients at given inputs. A node is an input,
    an intermediate or a result. `failed` is the check that found a wrong gradient.

    located   whether the function shows its intermediates, by the keyword `tap` or on the tape
    values    by name, in the order in which they are made
    targets   for each input and intermediate, the gradient that the pullback returned and what is
              needed to check it; the gradient is 0 if the pullback returned none
    known     the names whose gradient the pullback returns, and the results; without `unused`
    unknown   names of gradients that the pullback returns although nothing of that name is tapped
    unused    intermediates with a gradient, from which nothing is computed: what tap returned was
              not used
    silent    whether the function taps intermediates, but its pullback returns no gradient of any
    right     the right gradients by name, as far as known; for a result, its cotangent
    wrong     the names for which the pullback returned a wrong gradient
    letters   the names of the results in formulas: y, if the pullback's parameter is dy
    constants arrays of floats among the inputs that have no gradient
    """

    def __init__(self, failed: FailedCheck) -> None:
        self.failed, self.function = failed, failed.function
        self.located = self.function.takes_tap or self.function.on_tensors
        self.targets, self.inputs = dict(failed.targets), list(failed.targets)
        self._numbers = dict(zip(self.inputs, self.function.hosts, strict=True))
        self._parts: dict[tuple[str, str], np.ndarray] = {}
        self._after: dict[str, set[str]] = {}
        results, inner = self.function.intermediates(self.function.hosts)
        self.results = [RESULT if k == 0 else f"{RESULT} {k + 1}" for k in range(len(results))]
        hosts = zip(self.inputs, self.function.hosts.values(), strict=True)
        parameters = self.function.cotangent_names(len(results))
        self.letters = dict(zip(self.results, (p[1:] for p in parameters), strict=True))
        self.values = dict(hosts) | inner | dict(zip(self.results, results, strict=True))
        constants = self.function.constants
        self.constants = {name: x for name, x in constants.items() if x.dtype.kind == "f"}
        returned = failed.gradients.of_intermediates() if self.located else {}
        self.unknown = [name for name in returned if name not in inner]
        self.known = {*self.inputs, *self.results, *returned}
        self.silent = bool(self.function.takes_tap and inner and not returned)
        self.wrong = list(failed.wrong)
        self._judge(inner, returned)

    def _judge(self, values: Mapping[str, np.ndarray], returned: Mapping[str, np.ndarray]) -> None:
        """Add the intermediates to `targets`. Compare the gradients that the pullback returned for
        them with numeric ones, and add the names of wrong ones to `wrong`, or to `unused` if the
        function does not use the intermediate. `values` has the intermediates by name, `returned`
        these gradients."""
        # If the complex step works for the inputs, it works for what is computed from them.
        small = [t for t in self.targets.values() if t.x.size <= t.MANY]
        confirmed = bool(small) and all(t.analytic for t in small)
        first = self.targets[self.inputs[0]]
        dtype = first.gradient.dtype
        for name, x in values.items():
            gradient = np.real(returned.get(name, np.zeros(x.shape)))
            if gradient.dtype != np.float32:  # which is judged by its own precision
                gradient = gradient.astype(dtype)
            self.targets[name] = target = replace(
                first,
                name=name,
                x=x,
                gradient=gradient,
                loss=self.failed.gradients.loss(name),
                noise=10 * float(np.finfo(dtype).eps) * float(abs(gradient).max(initial=0.0)),
                confirmed=confirmed,
                at_kinks=None,
            )
            if name in returned and not (
                gradient.shape == x.shape and next(target.compare("adjoint")).passed
            ):
                self.wrong.append(name)
        self.unused = [n for n in values if n in returned and not self.descendants(n)]
        self.wrong = [name for name in self.wrong if name not in self.unused]
        self.known -= set(self.unused)

    def comparison(self, name: str) -> Comparison | None:
        """Return the comparison that shows that the gradient of a node is wrong. It compares each
        entry if there is time for that, and otherwise slopes along random directions. Returns None
        if the gradient has the wrong shape."""
        target = self.targets[name]
        if target.gradient.shape != target.x.shape:
            return None
        compared = target.compare(entrywise=self.has_time_for(name))
        failed = (comparison for comparison in compared if not comparison.passed)
        return next(failed, None) or self.failed.wrong[name]

    @cached_property
    def right(self) -> dict[str, np.ndarray]:
        """The right gradients by name: those of the pullback that were found right; for each node
        at fault, its numeric gradient, unless the node has too many entries to compute it; and for
        each result, its cotangent."""
        found = {
            name: target.gradient.astype(np.float64)
            for name, target in self.targets.items()
            if name in self.known and name not in self.wrong
        }
        numeric = {n: self.targets[n].numeric() for n in self.culprits if self.has_time_for(n)}
        results = zip(self.results, self.failed.gradients.cotangents, strict=True)
        return found | numeric | {name: c.astype(np.float64) for name, c in results}

    @cached_property
    def attention(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The weights of attention in one dictionary, and the right gradients of weights and scores
        in another, by name. They are computed from the inputs if the function computes attention,
        but does not show its intermediates. Otherwise, both dictionaries are empty."""
        named = {name.lower(): name for name in self.inputs}
        roles = [named.get(role) or named.get(role[0]) for role in ("query", "key", "value")]
        if None in roles or set(self.values) != {*self.inputs, *self.results}:
            return {}, {}
        q, k, v = (self.values[name] for name in roles if name)
        out, dout = (x[self.results[0]] for x in (self.values, self.right))
        if not min(q.ndim, k.ndim, v.ndim) >= 2 or not q.size * k.size:
            return {}, {}
        reach = k.shape[-2] - q.shape[-2]
        masks = [None, *(np.tri(q.shape[-2], k.shape[-2], n, dtype=bool) for n in {0, reach})]
        masks += [x for x in self.function.constants.values() if x.dtype == bool]
        width = q.shape[-1]
        for visible, scale in itertools.product(masks, (width**-0.5, 1.0, 1 / width)):
            try:
                steps = attention_steps(q, k, v, visible, scale=scale)
            except (TypeError, ValueError):
                continue
            if steps["out"].shape == out.shape and np.allclose(steps["out"], out, 1e-9, 0):
                p, dp = steps["weights"], matmul(dout, v.mT)
                assert dp is not None  # out, made of v, has the shape of dout
                return {"weights": p}, {"weights": dp, "scores": through_softmax(p, dp)}
        return {}, {}

    def has_time_for(self, name: str) -> bool:
        """Whether a node has few enough entries to compute a numeric derivative for each of
        them."""
        target, everything = self.targets[name], sum(self.values[n].size for n in self.inputs)
        return target.x.size * max(everything, target.MANY) <= 2 * target.MANY**2

    @cached_property
    def culprits(self) -> list[str]:
        """The nodes at fault: those whose gradient is wrong, although the gradients of all nodes
        computed from them are right. The last computed comes first."""
        wrong = set(self.wrong)
        made = [name for name in self.values if name in wrong]
        return [name for name in reversed(made) if not wrong & self.descendants(name)]

    def descendants(self, name: str) -> set[str]:
        """Return the nodes that are computed from this node: those that change when its value is
        changed a little."""
        if name not in self._after:
            self._after[name] = self._moved_by(name, {})
        return self._after[name]

    def consumers(self, name: str) -> list[str]:
        """Return the nodes that are computed from this node in one step. A step leads from a
        node to the next ones whose gradients are known, whatever intermediates with unknown
        gradients are in between."""
        moved = self._moved_by(name, self._held(name)) & self.known
        return [n for n in self.values if n in moved]

    def between(self, name: str) -> list[str]:
        """Return the intermediates between this node and its consumers. The pullback does not
        return their gradients."""
        moved = self._moved_by(name, self._held(name)) - self.known
        return [n for n in self.values if n in moved and self.descendants(n) & self.known]

    def part(self, name: str, consumer: str) -> np.ndarray:
        """Return the part of a node's numeric gradient that comes through one of its consumers.

        The parts of all consumers add up to the gradient.
        """
        if (name, consumer) not in self._parts:
            at = self._numbers.get(name, name)
            seen = self.results.index(consumer) if consumer in self.results else consumer
            loss = self.failed.gradients.loss(at, self._held(name), (seen, self.right[consumer]))
            alone = replace(self.targets[name], loss=loss, noise=0.0)
            self._parts[name, consumer] = alone.numeric()
        return self._parts[name, consumer]

    def _held(self, name: str) -> dict[str, np.ndarray]:
        held = self.descendants(name) & self.known - set(self.results)
        return {n: self.values[n] for n in held}

    def _moved_by(self, name: str, held: Mapping[str, np.ndarray]) -> set[str]:
        """Return the nodes whose values change when each entry of this node is multiplied by a
        random factor just above 1, so that its sign stays the same; a 0 becomes slightly positive.
        Meanwhile, the nodes in `held` have the values given there."""
        x, hosts, replaced = self.values[name], dict(self.function.hosts), dict(held)
        r = np.random.default_rng(0).uniform(0.5, 1, x.shape)
        moved = np.asarray(np.where(x == 0, 1e-3 * r, x * (1 + 1e-3 * r)), dtype=x.dtype)
        if name in self._numbers:
            hosts[self._numbers[name]] = moved
        else:
            replaced[name] = moved
        results, inner = self.function.intermediates(hosts, replaced)
        now = inner | dict(zip(self.results, results, strict=True))
        return {
            n
            for n, y in now.items()
            if n in self.values.keys() - {name} and not is_rounded(y, self.values[n])
        }

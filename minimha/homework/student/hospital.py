"""The hospital of chapter 10: twelve models, one of which is healthy, without labels.

patient = mh.homework.patient(3, student="anna")
patient.learn(300)                             the losses of its own training
mended = patient.mend("no causal mask")        your verdict, and the repair of that part
mended.reveal()                                both verdicts: yours and the true one

No attribute of a patient names its cause. Whoever reads this file can work it out.
"""

from __future__ import annotations

import functools
import math
from types import EllipsisType
from typing import Any

import numpy as np

from minimha_autograd import Tensor

from ...functional import cross_entropy, softmax
from ...masks import Mask, causal
from ...nn import AdamW, Dropout
from ...transformers import GPT
from .guesses import guess, guessed

HEALTHY = "nothing is wrong"
CAUSES = (
    HEALTHY,
    "targets not shifted",
    "initial weights too large",
    "softmax before cross entropy",
    "a cut in the graph",
    "parameters missing from the optimiser",
    "learning rate too low",
    "no causal mask",
    "causal mask one position too far",
    "heads merged without a transpose",
    "each token sees only itself",
    "dropout outside training",
)


def patient(number: int, student: str = "") -> Patient:
    """Return patient 1 to 12, untrained: a GPT that has one of the faults in CAUSES, or none. The
    name of the student determines which patient has which fault, and the sizes and weights; the
    same number and name always give the same patient.

    Raises ValueError for another number.
    """
    if number not in range(1, len(CAUSES) + 1):
        raise ValueError(f"there is no patient {number!r}: they are numbered 1 to {len(CAUSES)}")
    return Patient(number, student)


class Patient(GPT):
    """A GPT with its own data and its own training. One thing may be wrong: in the model, in the
    data or in the training.

    Its sequences count round a clock with V hours: each starts at a random token and then advances
    by the same 1, 2 or 3 from token to token.

    number, student  as in `patient`
    verdict          the verdict given to `mend`, which returned this patient: if it names the
                     fault, the fault is repaired. None for a patient that `mend` did not return, or
                     whose verdict was `...`
    vocabulary       V, the number of different tokens
    best             the lowest expected loss without seeing the future, (log 3) / T: the first of
                     the T targets is one of three tokens, and the others follow from the tokens
                     before them
    """

    def __init__(self, number: int, student: str, verdict: str | None = None) -> None:
        self.number, self.student, self.verdict = number, student, verdict
        self.vocabulary, context, width = _ward(student)[0]
        self.best, seed = math.log(3) / context, [number, *student.encode()]
        super().__init__(
            self.vocabulary, context=context, d_model=width, num_heads=2, num_layers=2,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        self._rng = np.random.default_rng([0, *seed])
        for block in self.blocks:
            attend = block.attention.attend
            attend.provide(functools.partial(self._attend, attend.function))
        if self._has("initial weights too large"):
            for p in self.parameters():
                p.data = p.data * np.float32(40 if p.ndim == 2 else 1)
        trained = self.parameters()
        if self._has("parameters missing from the optimiser"):
            trained = [p for n, p in self.named_parameters() if not n.startswith("blocks")]
        rate = 1e-5 if self._has("learning rate too low") else 1e-2
        self._optimiser = AdamW(trained, lr=rate)

    def batch(self, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
        """Draw the inputs and the targets of new sequences, (size, T) each, as the patient's
        training does."""
        shape, v = (size, 1), self.vocabulary
        start, step = self._rng.integers(v, size=shape), self._rng.integers(1, 4, size=shape)
        tokens = (start + step * np.arange(self.context + 1)) % v
        shift = 0 if self._has("targets not shifted") else 1
        return tokens[:, :-1], tokens[:, shift : self.context + shift]

    def learn(self, steps: int = 300) -> list[float]:
        """Train for this many more steps with the patient's own optimiser. Returns the loss before
        each step."""
        losses = []
        for _ in range(steps):
            inputs, targets = self.batch()
            self._optimiser.zero_grad()
            loss = cross_entropy(self(inputs), targets)
            loss.backward()
            self._optimiser.step()
            losses.append(loss.item())
        return losses

    def mend(self, verdict: str | EllipsisType) -> Patient:
        """Record your verdict, one of CAUSES, and return the patient, untrained, with the part that
        the verdict names replaced by a healthy one. If the fault is elsewhere, this changes
        nothing.

        If the verdict is `...`, print a request for one, and return the patient, untrained and not
        repaired. Raises ValueError for any other verdict.
        """
        if verdict is not ... and verdict not in CAUSES:
            raise ValueError(f"{verdict!r} must be one of these: {', '.join(CAUSES)}")
        guess(self._question, verdict)
        return Patient(self.number, self.student, None if verdict is ... else verdict)

    def reveal(self) -> None:
        """Print your last verdict on this patient and the true one. Call it on what `mend` returned
        for your verdict; on any other patient, it prints only a request to call `mend`."""
        if self.verdict is None:
            print(f"{self._question}: no verdict yet. Call patient.mend(verdict) first")
        else:
            guessed(self._question, _ward(self.student)[1][self.number - 1])

    def __call__(self, tokens: Any, *, return_weights: bool = False, **settings: Any) -> Any:
        """Return the logits (B, T, V) of tokens (B, T); with return_weights also a list of the
        attention weights (B, H, T, T) of each block. Other settings have no effect.

        Raises ValueError if the setting `caches` is given: call `mh.generate` with cache=False.
        """
        if settings.get("caches"):
            raise ValueError("a patient has no caches: mh.generate(…, cache=False)")
        assert self.positions is not None
        assert self.head is not None
        x, weights = self.tokens(tokens) + self.positions(np.arange(tokens.shape[1])), []
        if self._has("dropout outside training"):
            x = Dropout(0.3)(x, self._rng)
        mask: Mask | None = causal()
        if self._has("no causal mask"):
            mask = None
        if self._has("causal mask one position too far"):
            mask = causal(offset=1)
        if self._has("each token sees only itself"):
            mask = causal() & ~causal(offset=-1)
        for block in self.blocks:
            x, seen = block(x, mask, return_weights=True)
            weights.append(seen)
        logits = self.head(self.norm(Tensor(x.data) if self._has("a cut in the graph") else x))
        if self._has("softmax before cross entropy"):
            logits = softmax(logits)
        return (logits, weights) if return_weights else logits

    def __repr__(self) -> str:
        return f"{self._question}: V = {self.vocabulary}, T = {self.context}"

    @property
    def _question(self) -> str:
        return f"patient {self.number}" + f" of {self.student}" * bool(self.student)

    def _attend(self, attend: Any, *inputs: Any, **settings: Any) -> Any:
        """Call `attend`, a function that computes attention, with these inputs and settings, and
        return its result. If the fault is that heads are merged without a transpose, first
        rearrange the heads so that the usual merge, which follows, gives what a merge without a
        transpose would give."""
        out = attend(*inputs, **settings)
        if self._has("heads merged without a transpose"):
            heads, *weights = out if isinstance(out, tuple) else (out,)
            b, h, t, d = heads.shape
            heads = heads.reshape(b, t, h, d).transpose(1, 2)
            return (heads, *weights) if weights else heads
        return out

    def _has(self, cause: str) -> bool:
        own = _ward(self.student)[1][self.number - 1]
        return cause == own != self.verdict


@functools.cache
def _ward(student: str) -> tuple[tuple[int, int, int], tuple[str, ...]]:
    """Return what differs between the patients of different students, given the name of a student:
    the vocabulary V, the context T and the width M, which all patients of the student share, and
    the cause of each patient, one of CAUSES, beginning with patient 1."""
    rng = np.random.default_rng([10, *student.encode()])
    sizes = int(rng.integers(11, 18)), int(rng.integers(9, 14)), 8 * int(rng.integers(3, 5))
    return sizes, tuple(map(str, rng.permutation(CAUSES)))

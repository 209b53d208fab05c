"""The message of a failed check: the facts, the place of the fault, and the likely cause."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterator

from minimha_autograd.gradcheck import labelled, listed
from minimha_autograd.gradcheck.failure import FailedCheck

from . import arithmetic, attention, layers
from .causes import CHAPTERS, UNEXPLAINED, Cause, Diagnosis, WrongGradient
from .step import Mistake, Step
from .trace import Trace

RECOGNISERS: tuple[Callable[[Step], Iterator[Mistake]], ...] = (
    arithmetic.counted, arithmetic.uses, arithmetic.nothing,
    attention.scale, attention.groups, attention.wrong_softmax, attention.untapped_softmax,
    attention.dropout, attention.mask, layers.rope, layers.norm, layers.gain,
    attention.parts_exchanged, layers.target, layers.embedding,
    arithmetic.constant_ratio, arithmetic.reordered, arithmetic.another_input,
    arithmetic.passed_through, arithmetic.product,
)  # fmt: skip
"""The functions that recognise known mistakes, in the order of the search: those for attention come
before the general ones."""

_AXES = {
    ("query", "q", "heads"): ("batch", "head", "query", "column"),
    ("key", "k", "value", "v"): ("batch", "head", "key", "column"),
    ("raw", "scaled", "capped", "biased", "scores", "weights", "dropped"): (
        "batch", "head", "query", "key",
    ),
}  # fmt: skip
AXES = {(name, len(axes)): axes for names, axes in _AXES.items() for name in names}
"""The names of the axes of attention's arrays, by the array's name and its number of axes."""


def explain(failed: FailedCheck) -> tuple[str, Diagnosis]:
    """Return the message for a check that failed, and its diagnosis."""
    if failed.only_at_kinks:
        return failed.message(), _kink(failed)
    trace = Trace(failed)
    diagnosis = diagnosis_of(trace)
    facts = lines = [failed.headline()]
    guesses = [wrong for wrong in diagnosis.wrong_gradients if wrong.cause != UNEXPLAINED]
    shown = guesses or list(diagnosis.wrong_gradients[:1])
    for wrong in shown:
        name, target = wrong.node, trace.targets[wrong.node]
        axes = failed.axes.get(name) or AXES.get((name, target.x.ndim))
        added = failed.facts(target, trace.comparison(name), axes)
        if wrong.after and trace.located:
            added.append(labelled("located", _location(trace, wrong)))
        guess = [labelled("looks like", wrong.text)]
        if wrong.chapter:
            guess.append(labelled("read", f"chapter {wrong.chapter}"))
        facts, lines = [*facts, *added], [*lines, *added, *guess]
    diagnosis = diagnosis._replace(facts="\n".join(facts))
    if rest := [wrong.node for wrong in diagnosis.wrong_gradients if wrong not in shown]:
        lines.append(f"Also wrong, and not explained: {listed(rest)}")
    advice = _advice(trace, diagnosis)
    lines += [textwrap.fill(line, 80, break_on_hyphens=False) for line in advice]
    return "\n".join(lines), diagnosis


def diagnosis_of(trace: Trace) -> Diagnosis:
    """Return the diagnosis of a function with a wrong gradient, given the trace of its nodes: which
    nodes are at fault, and the likely cause at each."""
    found = []
    for name in trace.culprits:
        after = tuple(trace.consumers(name)) if trace.located else ()
        cause = arithmetic.before_comparing(trace, name) or _guess(trace, name)
        found.append(WrongGradient(name, after, *cause, _chapter(trace, cause)))
    nodes = tuple(wrong.node for wrong in found)
    first = found[0]
    return Diagnosis(nodes, first.cause, first.text, first.chapter, tuple(found))


def _kink(failed: FailedCheck) -> Diagnosis:
    """Return the diagnosis for a gradient that is wrong only where the function has a kink: no
    formula is at fault."""
    text, chapter = "\n".join(failed.kink()), CHAPTERS["kink"]
    found = tuple(WrongGradient(name, (), "kink", text, chapter) for name in failed.wrong)
    return Diagnosis(tuple(failed.wrong), "kink", text, chapter, found, failed.message())


def _chapter(trace: Trace, cause: Cause) -> str:
    """Return the chapter to read about a cause, "" if there is none. If the cause is a product with
    a wrong or untransposed operand, the chapter depends on the function that was checked:
    "05 attention" if it computes attention, "04 projections" if the name of an input begins with w,
    as of weights. In all other cases it is the chapter in `CHAPTERS`."""
    if cause.name.startswith("operand"):
        if trace.values.keys() & {"scores", "weights", "query"}:
            return "05 attention"
        if any(name.startswith("w") for name in trace.inputs):
            return "04 projections"
    return CHAPTERS.get(cause.name, "")


def _guess(trace: Trace, name: str) -> Cause:
    """Return the cause of the wrong gradient of the node `name`. It is found by the first of
    `RECOGNISERS` that yields this gradient for a known mistake. If none does, the cause is
    "unexplained"."""
    consumers: list[str | None] = [*trace.consumers(name)]
    together = [None] * (len(consumers) != 1)
    for consumer in together + consumers:
        step = Step(trace, name, consumer)
        for recogniser in RECOGNISERS:
            try:
                if cause := step.made_by(recogniser(step)):
                    return cause
            except Exception as error:  # the facts must reach the reader in any case
                text = f"{recogniser.__name__} failed in {step.place}: {error!r}"
                warnings.warn(text, RuntimeWarning, 2)
    return Cause(UNEXPLAINED, "none of the known mistakes")


def _location(trace: Trace, wrong: WrongGradient) -> str:
    """Return a text that says between which nodes the fault is: "between h and y: the gradient of y
    is right, that of h is not"."""
    name, after = wrong.node, listed(wrong.after)
    right = f"gradient of {after} is" if len(wrong.after) == 1 else f"gradients of {after} are"
    text = f"between {name} and {after}: the {right} right, that of {name} is not"
    if unknown := trace.between(name):
        text += f"; no gradient is returned for {listed(unknown)}, in between"
    return text


def _advice(trace: Trace, diagnosis: Diagnosis) -> Iterator[str]:
    """Yield sentences that say what the student should change, such as a call of tap, so that the
    check can locate or name a mistake."""
    tapped = [n for n in trace.targets if n not in trace.inputs]
    if trace.unknown:
        yield (
            f"The pullback returns a gradient for {listed(trace.unknown)}, but tap is never called "
            f"with that name. tap is called for {listed(tapped) or 'nothing'}"
        )
    if trace.unused and trace.function.takes_tap:  # an operation may have a result of no use
        name = trace.unused[0]
        yield (
            f"The function does not use what tap returns for {listed(trace.unused)}: write "
            f'{name} = tap("{name}", {name})'
        )
    if trace.silent:
        yield (
            "The pullback returns no gradients of intermediates. After those of the inputs, return "
            f'a dictionary, {{"{tapped[0]}": d{tapped[0]}, …}}'
        )
    if trace.function.takes_tap and not tapped and diagnosis.cause == UNEXPLAINED:
        yield (
            "The function never calls tap. To find the step at fault, pass each intermediate "
            'through it, h = tap("h", h), and return {"h": dh, …} after the other gradients'
        )

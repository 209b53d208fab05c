"""Where libraries disagree about attention: small experiments, run on each of them.

python benchmarks/disagreements.py [--save docs/disagreements.md] [--errors] [WORD …]

`pip install -e ".[peers]"` installs the libraries. A missing one says so in its column; --save
needs them all. Every verdict is computed from the results. A WORD selects the questions that
contain it; --errors prints the message of each error.
"""

from __future__ import annotations

import argparse
import functools
import math
import pathlib
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from common import table
from libraries import LIBRARIES, MISSING, NOT_OFFERED, Library, NotOfferedError, version_of

B, H, T, S, D = 2, 3, 5, 7, 4


# The expected values, and the words for the results.


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype("float32")


def qkv(t: int = T, s: int = S, h: int = H) -> list[np.ndarray]:
    return [draw(B, h, n, D, seed=i) for i, n in enumerate((t, s, s))]


def softmax(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def expected(q, k, v, visible=True, bias=0.0, scale=None):
    """Attention in float64, for rows that have something to attend to."""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return softmax(np.where(visible, scale * q @ k.swapaxes(-1, -2) + bias, -np.inf)) @ v


def close(a: Any, b: Any, tolerance: float = 1e-4) -> bool:
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


def which(out: np.ndarray, readings: dict[str, Any]) -> str:
    """The name of the first array that the output equals."""
    if np.isnan(out).any():
        return "NaN"
    return next((name for name, x in readings.items() if close(out, x)), "something else")


def ask(library: Library, readings: dict[str, Any], *x: np.ndarray, **settings: Any) -> str:
    """The first reading that explains the library's output: a visible array, or what differs from
    plain attention."""
    arguments = {n: r if isinstance(r, dict) else {"visible": r} for n, r in readings.items()}
    arrays = {name: expected(*x, **different) for name, different in arguments.items()}
    return which(library.attend(*x, **settings).out, arrays)


def mean_of(v: np.ndarray, out: np.ndarray) -> np.ndarray:
    return np.broadcast_to(v.mean(-2, keepdims=True), out.shape)


def not_finite(gradients: tuple[np.ndarray, ...]) -> str:
    """How many of the numbers are not finite, if any."""
    bad = sum(int(np.sum(~np.isfinite(g))) for g in gradients)
    return f"{bad}/{sum(g.size for g in gradients)} NaN" if bad else ""


# The experiments. A topic is a function that tests a library: row(question, answer, *arguments,
# **settings) records the result of answer(*arguments, **settings), or its error.
# Questions marked † depend on how this machine rounds sums.

TOPICS: dict[str, Callable[..., None]] = {}


def topic(title: str) -> Callable[..., Any]:
    return functools.partial(TOPICS.setdefault, title)


@topic("Masks")
def masks(row, library):
    x = qkv()
    visible = draw(T, S) > 0
    lengths = np.arange(S) < np.array([[3], [5]])  # (B, S): a length for each sequence
    padding = lengths[:, None, None]  # (B, 1, 1, S)
    three_axes = draw(B, T, S) > -0.5
    heads = {"(B, T, S)": three_axes[:, None], "(H, T, S)": three_axes}
    axes = {"(T, S)": lengths, "(T, S), inverted": ~lengths, "(B, S)": padding}

    def polarity(seen, **settings):
        return ask(library, {"may attend": seen, "hidden": ~seen}, *x, **settings)

    def numbers(seen, hidden, dtype):
        mask = np.where(visible, seen, hidden).astype(dtype)
        readings = {"added": {"bias": mask}, "as intended": visible, "inverted": ~visible}
        return ask(library, readings, *x, mask=mask)

    row("boolean mask: True =", polarity, visible, mask=visible)
    row("0 / −1e9 floats as the mask", numbers, 0, -1e9, "float32")
    row("1 / 0 floats as the mask, 1 = visible", numbers, 1, 0, "float32")
    row("1 / 0 integers as the mask, 1 = visible", numbers, 1, 0, "int32")
    row("a (B, S) mask, if B = T, is read as", ask, library, axes, *qkv(t=B), mask=lengths)
    row("a (B, T, S) mask, if B = H, is read as", ask, library, heads, *qkv(h=B), mask=three_axes)
    row("a (B, 1, 1, S) mask", ask, library, {"broadcasts": padding}, *x, visible=padding)
    row(
        "`key_padding_mask`, in keras `key_mask`: True =",
        polarity,
        padding,
        key_padding_mask=lengths,
    )
    key_2, causal = np.tile(np.arange(S) != 2, (S, 1)), np.tri(S, dtype=bool)
    both = {"both hold": key_2 & causal, "causal is lost": key_2, "the mask is lost": causal}

    def together(**settings):
        return ask(library, both, *qkv(t=S), visible=key_2, causal=True, **settings)

    row("a boolean mask together with causal, without weights", together, weights=False)
    row("the same, with weights requested", together, weights=True)


@topic("A query with nothing to attend to")
def empty_rows(row, library):
    x = qkv()
    itself = [draw(B, 2, T, D)] * 3  # an even H: a condition of torch's fast path
    visible = np.repeat(np.arange(T) != 1, S).reshape(T, S)  # query 1 sees nothing
    infinity, billion = (np.where(visible, 0, n).astype("float32") for n in (-np.inf, -1e9))

    def output(x=x, **settings):
        out = library.attend(*x, **settings).out[:, :, 1]
        return which(out, {"0": np.zeros_like(out), "mean(V)": x[2].mean(-2)})

    def weights():
        row = library.attend(*x, visible=visible, weights=True).weights[..., 1, :]
        return which(row, {"0": np.zeros_like(row), "1/S": np.full_like(row, 1 / S)})

    def gradient(**settings):
        dout = np.zeros_like(x[0])
        dout[:, :, 1] = 1  # the empty query alone
        gradients = library.attend(*x, dout=dout, **settings).gradients[:3]
        reached = [n for n, g in zip("QKV", gradients, strict=True) if abs(g).max() > 1e-6]
        return not_finite(gradients) or ("reaches " + ", ".join(reached) if reached else "0")

    crossed = [draw(B, 2, n, D, seed=i) for i, n in enumerate((T, S, S))]
    alone = {"visible": visible[:, :T], "inference": True, "weights": False}
    at_inference = {"visible": visible, "inference": True}
    row("boolean mask: output without weights", output, visible=visible, weights=False)
    row("the same at inference, self-attention", output, itself, **alone)
    row("the same at inference, cross-attention", output, crossed, **at_inference, weights=False)
    row("boolean mask: output with weights requested", output, visible=visible, weights=True)
    row("the same with weights, at inference", output, crossed, **at_inference, weights=True)
    row("boolean mask: weights", weights)
    row("boolean mask: gradients of Q, K, V", gradient, visible=visible)
    row("bias −∞: output", output, bias=infinity)
    row("bias −∞: gradients of Q, K, V", gradient, bias=infinity)
    row("bias −1e9: output", output, bias=billion)


@topic("NaN and infinity in hidden positions")
def not_numbers(row, library):
    visible = np.tile(np.arange(S) != 2, (T, 1))  # key 2 is hidden from all queries
    dout = draw(B, H, T, D)

    def leaks(out):
        queries = (~np.isfinite(out)).any((0, 1, 3))
        return f"leaks ({queries.sum()}/{queries.size})" if queries.any() else "stays hidden"

    def hidden(axis, number, **settings):
        x = qkv()
        x[axis][:, :, 2] = number
        answer = library.attend(*x, visible=visible, **settings)
        return (not_finite(answer.gradients) or "stays hidden") if settings else leaks(answer.out)

    row("NaN in a hidden value", hidden, 2, np.nan)
    row("infinity in a hidden value", hidden, 2, np.inf)
    row("NaN in a hidden key", hidden, 1, np.nan)
    row("infinity in a hidden key", hidden, 1, np.inf)
    row("NaN in a hidden value: gradients", hidden, 2, np.nan, dout=dout)
    row("NaN in a hidden key: gradients", hidden, 1, np.nan, dout=dout)

    def from_the_future():
        q, k, v = qkv(t=S)
        v[:, :, -1] = np.nan
        return leaks(library.attend(q, k, v, causal=True).out[:, :, :-1])

    def unused_query():
        used = np.arange(T)[:, None] != 1
        q, k, v = qkv()
        q, dy = np.where(used, q, np.float32(np.nan)), np.where(used, dout, np.float32(0))
        dq, dk, dv = library.attend(q, k, v, dout=dy).gradients
        return not_finite((np.delete(dq, 1, 2), dk, dv)) or "stay finite"

    def plus_infinity():
        x, bias = qkv(), np.where(visible, 0, np.inf).astype("float32")
        alone = {"that key alone": np.tile(x[2][:, :, 2:3], (T, 1))}
        return which(library.attend(*x, bias=bias).out, alone)

    row("NaN in the last value, causal: earlier queries", from_the_future)
    row("NaN in a query whose output is not used: gradients", unused_query)
    row("a bias of +∞ on one key", plus_infinity)


@topic("Causal masks and windows")
def order(row, library):
    def alignment(t, s):
        x, both = qkv(t, s), slice(max(0, t - s), None)  # queries that see a key either way
        aligned = {
            name: expected(*x, np.tri(t, s, offset, dtype=bool))[:, :, both]
            for name, offset in {"top-left": 0, "bottom-right": s - t}.items()
        }
        return which(library.attend(*x, causal=True).out[:, :, both], aligned)

    def window(t, s, query):
        """The keys that a query sees with a window of 2."""
        q, k, _ = qkv(t, s)
        q, k = (np.pad(x, ((0, 0),) * 3 + ((0, s - D),)) for x in (q, k))  # all accept D = Dv
        v = np.broadcast_to(np.eye(s, dtype="float32"), (B, H, s, s))
        return np.flatnonzero(library.attend(q, k, v, window=2).out[0, 0, query] > 1e-9)

    def reach():
        seen = window(9, 9, query=4) - 4
        low, high = (f"i{n:+d}".replace("-", "−") if n else "i" for n in (seen.min(), seen.max()))
        return f"{low} … {high}"

    def window_alignment():
        middle = window(7, 10, query=3).mean()
        return {3: "top-left", 6: "bottom-right"}.get(middle, f"at {middle}")

    row("causal, T < S: alignment", alignment, 5, 7)
    row("causal, T > S: alignment", alignment, 7, 5)
    row("a window of 2: query i sees", reach)
    row("a window, T < S: alignment", window_alignment)


@topic("Heads and shapes")
def shapes(row, library):
    q, k, v = qkv()

    def grouped():
        q, k, v = draw(B, 4, T, D), draw(B, 2, S, D, seed=1), draw(B, 2, S, D, seed=2)
        orders = {"h // (H/G)": [0, 0, 1, 1], "h mod G": [0, 1, 0, 1]}
        readings = {name: expected(q, k[:, h], v[:, h]) for name, h in orders.items()}
        return which(library.attend(q, k, v).out, readings)

    def no_queries():
        shape = library.attend(*qkv(t=0)).out.shape
        return "empty" if shape == (B, H, 0, D) else f"shape {shape}"

    def no_keys(**settings):
        out, _, gradients = library.attend(*qkv(s=0), **settings)
        return which(gradients[0] if settings else out, {"0": np.zeros_like(q)})

    def no_width():
        out = library.attend(q[..., :0], k[..., :0], v).out
        return which(out, {"mean(V)": mean_of(v, out)})

    row("grouped heads: query head h reads", grouped)
    row("Dv ≠ D", ask, library, {"yes": {}}, q, k, draw(B, H, S, D + 2))
    row("T = 0", no_queries)
    row("S = 0: output", no_keys)
    row("S = 0: gradient of the query", no_keys, dout=draw(B, H, T, D))
    row("D = 0", no_width)


@topic("Scale, softcap, bias and sink")
def scores(row, library):
    x = q, k, v = qkv()
    bias, scores = 2 * draw(T, S), q @ k.swapaxes(-1, -2) / math.sqrt(D)
    scales = {"1/√D": {"scale": D**-0.5}, "1/D": {"scale": 1 / D}, "1": {"scale": 1}}

    def scaled(scale):
        return ask(library, {"as given": {"scale": scale}, "1/√D instead": {}}, *x, scale=scale)

    row("default scale", ask, library, scales, *x)
    row("scale = 0", scaled, 0.0)
    row("scale = −1", scaled, -1.0)
    dtype = "float32 with scale = np.float64(0.5)"
    row(dtype, lambda: str(library.attend(*x, scale=np.float64(0.5)).out.dtype))

    def softcap():
        readings = {
            "softcap first": softmax(1.5 * np.tanh(scores / 1.5) + bias) @ v,
            "bias first": softmax(1.5 * np.tanh((scores + bias) / 1.5)) @ v,
        }
        return which(library.attend(*x, bias=bias, softcap=1.5).out, readings)

    def no_softcap():
        out = library.attend(*x, softcap=0.0).out
        return which(out, {"no cap": expected(*x), "mean(V)": mean_of(v, out)})

    def sink(logits):
        e, s = np.exp(scores), np.exp(logits)[:, None, None]
        right = e / (e.sum(-1, keepdims=True) + s) @ v
        return which(library.attend(*x, sink=logits).out, {"offered": right})

    def bias_gradient():
        dbias = library.attend(*x, bias=bias, dout=draw(B, H, T, D)).gradients[3]
        return "yes" if abs(dbias).max() > 1e-3 else "zeros"

    row("softcap and bias: order", softcap)
    row("softcap = 0", no_softcap)
    row("a sink of logit 0", sink, np.zeros(H, "float32"))
    row("a sink with a logit for each head", sink, draw(H))
    row("the bias gets a gradient", bias_gradient)

    def large():
        out = library.attend(100 * q, 100 * k, v).out
        return "right" if close(out, expected(100 * q, 100 * k, v), 2e-2) else which(out, {})

    def overflowing():
        out = library.attend(1e20 * q, 1e20 * k, v).out
        return "NaN" if np.isnan(out).any() else "finite"

    row("scores of 10⁴", large)
    row("scores beyond float32", overflowing)


@topic("Dtypes")
def dtypes(row, library):
    def dtype(query, others):
        q, k, v = qkv()
        x = q.astype(query), k.astype(others), v.astype(others)
        out = library.attend(*x).out
        coarse = out.dtype == "float64" and abs(out - expected(*x)).max() > 1e-10
        return f"{out.dtype}, float32 inside" if coarse else str(out.dtype)

    def half_sums():
        q, k = np.zeros((1, 1, 1, D), "float16"), np.zeros((1, 1, 332_223, D), "float16")
        return f"{library.attend(q, k, np.ones_like(k)).out.mean():.2f}"  # a weight: 50.5 · 2⁻²⁴

    def half_overflow():
        q = np.full((1, 1, 2, 100), 32, "float16")  # 100 · 32² = 102400 > 65504
        out = library.attend(q, q, np.ones_like(q)).out
        return "finite" if np.isfinite(out).all() else "NaN"

    row("float32 input: output dtype", dtype, "float32", "float32")
    row("float64 input: output dtype", dtype, "float64", "float64")
    row("float32 query, float64 key and value", dtype, "float32", "float64")
    row("float16 query, float32 key and value", dtype, "float16", "float32")
    row("integers", dtype, "int32", "int32")
    row("complex64", dtype, "complex64", "complex64")
    row("float16: mean of 332,223 ones †", half_sums)
    row("float16: QKᵀ is 10⁵ before scaling, 10⁴ after †", half_overflow)


@topic("Weights and dropout")
def weights_and_dropout(row, library):
    q, k = draw(1, 2, 64, 32), draw(1, 2, 32, 32, seed=1)
    identity = np.tile(np.eye(32, dtype="float32"), (1, 2, 1, 1))  # then out is the weights
    undropped = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(32))
    attend = functools.partial(library.attend, q, k, identity)

    def shape():
        readings = {"(B, H, T, S)": undropped, "mean over heads": undropped.mean(1)}
        return which(attend(weights=True).weights, readings)

    def same_output(inference):
        x = [draw(B, 2, 64, 32)] * 3  # an even H: a condition of torch's fast path
        a, b = (library.attend(*x, weights=w, inference=inference).out for w in (False, True))
        if np.array_equal(a, b):
            return "bitwise equal"
        return "equal up to rounding" if close(a, b) else "different"

    def kept(p):
        out = attend(dropout=p).out
        if close(out, undropped):
            return "no dropout"
        factors = (out / undropped)[out != 0]
        if not factors.size:
            return "zeros"
        return f"times {factors.mean():.1f}" if factors.std() < 1e-3 else "something else"

    def weights():
        dropped = attend(dropout=0.5, weights=True).weights == 0
        return "after dropout" if dropped.any() else "before dropout"

    def at_inference():
        dropped = attend(dropout=0.5, inference=True).out == 0
        return "dropped" if dropped.any() else "no dropout"

    row("shape of the weights", shape)
    row("output with and without requesting weights †", same_output, inference=False)
    row("the same at inference †", same_output, inference=True)
    row("dropout 0.5: factor of kept entries", kept, 0.5)
    row("dropout 0.5: weights returned", weights)
    row("dropout 0.5 at inference", at_inference)
    row("dropout 1", kept, 1.0)
    row("dropout 1.5", kept, 1.5)
    row("dropout −0.1", kept, -0.1)


@topic("Layers")
def layers(row, library):
    def output(layer, *arrays):
        result = layer(*arrays)
        out = result[0] if isinstance(result, tuple) else result
        return np.asarray(getattr(out, "data", out))

    def axis_of_positions():
        layer, _ = library.layer(12, 2)
        x = draw(3, 5, 12)
        moved = x.copy()
        moved[1, 2] += 1
        changed = (output(layer, *[moved] * 3) != output(layer, *[x] * 3)).any(-1)
        return "axis 1" if changed[1].all() and not changed[0].any() else "axis 0"

    def order_of_arguments():
        layer, _ = library.layer(12, 2)
        q, a, b = (draw(1, 5, 12, seed=seed) for seed in range(3))
        equal = np.tile(b[:, :1], (1, 5, 1))  # with equal values, keys do not matter
        same = close(output(layer, q, a, equal), output(layer, q, b, equal))
        return "query, key, value" if same else "query, value, key"

    def result():
        layer, _ = library.layer(12, 2)
        return "(out, weights)" if isinstance(layer(*[draw(1, 5, 12)] * 3), tuple) else "out"

    def indivisible_width():
        layer, w_q = library.layer(10, 3)
        layer(*[draw(1, 5, 10)] * 3)
        return f"heads of {w_q.shape[1] // 3}"

    def spread():
        return f"{library.layer(256, 4)[1].std() * 16:.1f}"

    def gradient_of_key_bias():
        dk = library.attend(*qkv(), dout=draw(B, H, T, D)).gradients[1].sum(-2)
        return "exactly 0" if not dk.any() else "rounding" if abs(dk).max() < 1e-5 else "not 0"

    row("x of three axes, default options: positions are", axis_of_positions)
    row("layer(a, b, c) means", order_of_arguments)
    row("a call returns", result)
    row("width 10, 3 heads (keras also needs their width: 3)", indivisible_width)
    row("initial W^Q, if H·D = M: standard deviation times √M", spread)
    row("gradient of a bias on all keys (should be 0) †", gradient_of_key_bias)


# The verdicts, and the page.


def verdicts(kind, words: Sequence[str] = (), errors: bool = False) -> dict[str, dict[str, str]]:
    """The answers of a library by topic and question. Questions must contain one of the words."""
    try:
        library, missing = kind(), False
    except ImportError:
        library, missing = Library(), True

    def row(found, question, answer, *arguments, **settings):
        if words and not any(word in question for word in words):
            return
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found[question] = MISSING if missing else answer(*arguments, **settings)
        except Exception as error:
            name = str(error) if isinstance(error, NotOfferedError) else type(error).__name__
            unknown = isinstance(error, TypeError) and "unexpected keyword" in str(error)
            found[question] = NOT_OFFERED if unknown else name
            if errors:
                print(f"{kind.name}, {question}: {type(error).__name__}: {error}")

    answers = {title: dict[str, str]() for title in TOPICS}
    for title, topic in TOPICS.items():
        topic(functools.partial(row, answers[title]), library)
    return answers


def tables(words: Sequence[str], errors: bool) -> dict[str, str]:
    """A table for each topic, and "The libraries"."""
    called = [f"`{kind.call}`{kind.note and ', ' + kind.note}" for kind in LIBRARIES]
    names = [kind.name for kind in LIBRARIES]
    rows = list(zip(names, map(version_of, LIBRARIES), called, strict=True))
    made = {"The libraries": table(["column", "version", "function"], rows)}
    columns = [verdicts(kind, words, errors) for kind in LIBRARIES]
    for title in TOPICS:
        rows = [[asked, *(x[title][asked] for x in columns)] for asked in columns[0][title]]
        made |= {title: table(["", *names], rows)} if rows else {}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="all questions by default")
    parser.add_argument("--save", type=pathlib.Path, help="write the tables to this page")
    parser.add_argument("--errors", action="store_true", help="print the message of each error")
    options = parser.parse_args()
    missing = [kind.name for kind in LIBRARIES if version_of(kind) == MISSING]
    if options.save and (missing or options.words):
        parser.error(f"the page needs all questions and all libraries; not installed: {missing}")
    made = tables(options.words, options.errors)
    print("\n\n".join(f"{title}\n\n{text}" for title, text in made.items()))
    if options.save:
        page = options.save.read_text(encoding="utf-8")
        for title, text in made.items():  # each is below its heading
            old = rf"(## {re.escape(title)}\n\n)(?:\|.*\n)*"
            page = re.sub(old, lambda found, text=text: f"{found[1]}{text}\n", page)
        options.save.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

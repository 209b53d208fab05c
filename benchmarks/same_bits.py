"""When results have the same bits: alone or in a batch, whole or in pieces, on one or two threads.

python benchmarks/same_bits.py [--quick] [--save docs/measured/same-bits.md]

Each cell compares all bits of two computations on random inputs. The last table shows what
`batch_invariant` costs compared with the ordinary mode; the two take turns.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import common
from common import ratios, seconds, spread, table, verdict

THREADS = 2
common.blas_threads(THREADS)  # before NumPy is loaded
import numpy as np

import minimha as mh
from minimha import functional, parallel
from minimha.functional import cross_entropy
from minimha.kernels import blas, threads

BATCH, LENGTH, WIDTH, HEADS, WORDS, BOUND = 6, 83, 96, 4, 211, 1.15
ATTENTION = "loop", "reference", "fused", "tiled", "microkernel"
LLAMA = {
    "norm": "rms", "activation": "swiglu", "bias": False, "rope": mh.positions.Rope(),
    "num_kv_heads": 2,
}  # fmt: skip
HEADERS = (
    "", "in a batch", "a prefix", "the last row", "gradients in a batch", "gradients of a prefix",
    "1 or 2 threads",
)  # fmt: skip
TITLE = f"""# When results have the same bits

`python benchmarks/same_bits.py`. Two ways to compute the same numbers often differ in their last
bits, because they add up terms in different orders, or compute functions such as exp by different
code. Each cell of the first table compares two ways on random inputs in float32, up to {BATCH}
sequences of up to {LENGTH} positions. "yes" means that all bits were equal in all runs. A "yes"
outside `batch_invariant` holds for this CPU, this BLAS and sequences as short as these; on others,
and for longer ones, the answer may be "no". Within the block, the tests check it wherever they run.

- **In a batch**: a sequence alone, and the same sequence in a batch.
- **A prefix**: the first positions alone, and the same positions of the whole sequence.
- **The last row**: the last position alone, and the same position of the whole sequence. Attention
  still gets all keys; a multi-head attention or a GPT gets a cache with the earlier positions.
- **Gradients**: those of inputs and parameters, for a loss of this sequence or prefix only.
- **1 or 2 threads**: values and gradients of the batch, on one thread and on two, of BLAS as well.

"""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


class Subject(NamedTuple):
    """A function of `inputs` (B, …, T, N) as Tensors, its parameters, and its last row alone."""

    function: Callable[..., Any]
    inputs: list[np.ndarray]
    parameters: list[Any]
    last: Callable[..., Any]

    def run(self, inputs: list[np.ndarray], dy: np.ndarray) -> tuple[Any, list[Any], list[Any]]:
        """The value and the gradients of the inputs and of the parameters."""
        for p in self.parameters:
            p.grad = None
        xs = [mh.Tensor(x.copy(), requires_grad=True) for x in inputs]
        y = self.function(*xs)
        y.backward(dy.copy())
        return y.data, [x.grad for x in xs if x.grad is not None], [p.grad for p in self.parameters]


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether all arrays have the same bits, so that 0 and −0 differ."""
    return all(
        (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
        for a, b in zip(one, other, strict=True)
    )


def compared(subject: Subject, runs: int) -> list[str]:
    """The cells of a row without its name."""
    rng, found = np.random.default_rng(1), []
    with mh.no_grad():
        width = subject.function(*map(mh.Tensor, subject.inputs)).shape
    for _ in range(runs):
        size, length = int(rng.integers(2, BATCH + 1)), int(rng.integers(2, LENGTH + 1))
        k, end = int(rng.integers(size)), int(rng.integers(1, length + 1))
        one, upto = slice(k, k + 1), (..., slice(end), slice(None))
        inputs = [x[:size, ..., :length, :] for x in subject.inputs]
        dy = np.zeros((size, *width[1:-2], length, width[-1]), "float32")
        dy[k][upto] = rng.standard_normal(dy[k][upto].shape)
        y, dxs, dws = subject.run(inputs, dy)
        first = [x[one][upto] for x in inputs]
        own, dx, dw = subject.run([x[one] for x in inputs], dy[one])
        prefix, dx_of_it, dw_of_it = subject.run(first, dy[one][upto])
        with one_thread():
            single, dx_single, dw_single = subject.run(inputs, dy)
        found.append([
            equal([own[0]], [y[k]]),
            equal([prefix[0]], [y[k][upto]]),
            equal([subject.last(*first)[0, ..., -1, :]], [y[k, ..., end - 1, :]]),
            equal([*dx, *dw], [*(a[one] for a in dxs), *dws]),
            equal([*dx_of_it, *dw_of_it], [*(a[one][upto] for a in dxs), *dws]),
            equal([single, *dx_single, *dw_single], [y, *dxs, *dws]),
        ])  # fmt: skip
    return ["yes" if all(column) else "no" for column in zip(*found, strict=True)]


def of_rows(function: Callable[..., Any], x: np.ndarray, *weights: np.ndarray) -> Subject:
    """A function whose rows do not depend on each other."""
    parameters = [mh.Tensor(w, requires_grad=True) for w in weights]

    def call(x: Any) -> Any:
        return function(x, *parameters)

    return Subject(call, [x], parameters, lambda x: call(mh.Tensor(x[..., -1:, :].copy())).data)


def attention() -> Subject:
    q, k, v = (normal(BATCH, HEADS, LENGTH + n, WIDTH // HEADS)[:, :, :LENGTH] for n in range(3))

    def causal(*inputs: Any) -> Any:
        return mh.scaled_dot_product_attention(*inputs, mask=mh.masks.causal())

    def last(q: Any, k: Any, v: Any) -> Any:
        return mh.scaled_dot_product_attention(q[..., -1:, :].copy(), k.copy(), v.copy())

    return Subject(causal, [q, k, v], [], last)


def layer() -> Subject:
    mha, causal = mh.MultiHeadAttention(WIDTH, HEADS), mh.masks.causal()

    def last(x: Any) -> Any:
        with mh.no_grad():
            cache = mh.KeyValueCache()
            parts = [part for part in (x[:, :-1], x[:, -1:]) if part.size]
            return [mha(mh.Tensor(x.copy()), mask=causal, cache=cache) for x in parts][-1].data

    return Subject(
        lambda x: mha(x, mask=causal), [normal(BATCH, LENGTH, WIDTH)], mha.parameters(), last
    )


def gpt(width: int = WIDTH, words: int = WORDS, layers: int = 2, **settings: Any) -> mh.GPT:
    heads = HEADS if width < 768 else 12
    return mh.GPT(words, context=512, d_model=width, num_heads=heads, num_layers=layers, **settings)


def words(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(WORDS, size=shape)


def model(**settings: Any) -> Subject:
    """Tokens are numbers (B, T, 1), so that positions are on the last axis but one."""
    made = gpt(**settings)

    def last(x: Any) -> Any:
        tokens, caches = x[..., 0].astype("int64"), made.new_caches()
        with mh.no_grad():
            parts = [part for part in (tokens[:, :-1], tokens[:, -1:]) if part.size]
            return [made(part, caches=caches) for part in parts][-1].data

    tokens = words(BATCH, LENGTH, 1).astype("float32")
    return Subject(
        lambda x: made(x.data[..., 0].astype("int64")), [tokens], made.parameters(), last
    )


def first_table(runs: int) -> str:
    x, weight = normal(BATCH, LENGTH, WIDTH), normal(WIDTH)
    subjects = {
        "linear": of_rows(functional.linear, x, normal(WIDTH, 3 * WIDTH), normal(3 * WIDTH)),
        "layer_norm": of_rows(functional.layer_norm, x, weight, weight),
        "rms_norm": of_rows(functional.rms_norm, x, weight),
        "gelu": of_rows(functional.gelu, x),
        "silu": of_rows(functional.silu, x),
        "softmax": of_rows(functional.softmax, x),
        "embedding": of_rows(
            lambda x, w: functional.embedding(w, x.data[..., 0].astype("int64")),
            words(BATCH, LENGTH, 1).astype("float32"), normal(WORDS, WIDTH),
        ),
        "rope, in attention": attention()._replace(
            function=lambda q, k, v: attention().function(*map(mh.positions.Rope(), (q, k)), v),
            last=lambda q, k, v: attention().last(
                *(mh.positions.Rope()(x.copy()) for x in (q, k)), v
            ),
        ),
        "MultiHeadAttention": layer(),
        "GPT as in GPT-2": model(tie=True),
        "GPT as in Llama": model(**LLAMA),
    }  # fmt: skip
    rows = []
    for name in ATTENTION:
        with mh.implementation(name):
            rows.append([f"attention, {name}", *compared(attention(), runs)])
    rows += [[name, *compared(subject, runs)] for name, subject in subjects.items()]
    with mh.batch_invariant():
        subjects = {"attention": attention(), **subjects}
        rows += [
            [f"{name}, `batch_invariant`", *compared(subject, runs)]
            for name, subject in subjects.items()
        ]
    return table(HEADERS, rows)


def trained(resumed: bool = False, ranks: int = 1) -> list[np.ndarray]:
    """The parameters of a GPT after four steps; `resumed` begins the last two with new objects."""
    rng, made = np.random.default_rng(0), gpt(tie=True)
    optimiser = mh.AdamW(made.parameters())
    for step in range(4):
        tokens = rng.integers(WORDS, size=(6, 33))
        if resumed and step == 2:
            made, state = with_values(values(made)), optimiser.state()
            optimiser = mh.AdamW(made.parameters())
            optimiser.set_state(state)
        if ranks > 1:
            found = parallel.run(average_gradients, ranks, values(made), tokens)[0]
        else:
            found = gradients(made, tokens)
        for p, g in zip(made.parameters(), found, strict=True):
            p.grad = g
        optimiser.step()
    return values(made)


def gradients(made: mh.GPT, tokens: np.ndarray) -> list[np.ndarray]:
    for p in made.parameters():
        p.grad = None
    cross_entropy(made(tokens[:, :-1]), tokens[:, 1:]).backward()
    return [p.grad for p in made.parameters()]


def average_gradients(comm: Any, state: Any, tokens: np.ndarray) -> list[np.ndarray]:
    """The mean gradients over the ranks, each of which has its part of the batch."""
    part = np.array_split(tokens, comm.size)[comm.rank]
    return [comm.all_reduce(g) / comm.size for g in gradients(with_values(state), part)]


def values(made: mh.GPT) -> list[np.ndarray]:
    return [p.data.copy() for p in made.parameters()]


def with_values(state: list[np.ndarray]) -> mh.GPT:
    made = gpt(tie=True)
    for p, x in zip(made.parameters(), state, strict=True):
        p.data = x.copy()
    return made


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, the kernels and BLAS use one thread."""
    with threads.limit(1), blas.single_threaded():
        yield


def second_table() -> str:
    rows = []
    for name, block in (
        ("", contextlib.nullcontext()),
        (", `batch_invariant`", mh.batch_invariant()),
    ):
        with block:
            usual = trained()
            with one_thread():
                single = trained()
            cells = trained(), single, trained(resumed=True), trained(ranks=2)
            rows.append(
                [f"four steps of a GPT{name}", *("yes" if equal(c, usual) else "no" for c in cells)]
            )
    return table(["", "again", "1 or 2 threads", "resumed or not", "1 or 2 ranks"], rows)


def price(quick: bool) -> str:
    rows = []
    sizes = [("width 128, 4 layers", gpt(128, 65, 4), 12, 64)]
    if not quick:
        sizes.append(("width 384, 6 layers", gpt(384, 65, 6), 8, 128))
        sizes.append(("GPT-2 small, tied", gpt(768, 50257, 12, tie=True), 1, 64))
    for name, made, batch, length in sizes:
        vocabulary = made.settings["vocabulary"]
        rng = np.random.default_rng(0)
        tokens = rng.integers(vocabulary, size=(batch, length))
        text, optimiser = rng.integers(vocabulary, size=(1, 400)), mh.AdamW(made.parameters())
        caches = made.new_caches()
        with mh.no_grad():
            made(text[:, :300], caches=caches)

        def step(m: Any = made, tokens: Any = tokens, optimiser: Any = optimiser) -> None:
            optimiser.zero_grad()
            cross_entropy(m(tokens), tokens).backward()
            optimiser.step()

        def prompt(m: Any = made, text: Any = text) -> None:
            with mh.no_grad():
                m(text)

        def token(m: Any = made, text: Any = text, caches: Any = caches) -> None:
            with mh.no_grad():
                m(text[:, :1], caches=caches)
            for cache in caches:
                cache.rewind(1)

        calls = {"a training step": step, "a prompt of 400": prompt, "a token after 300": token}
        for what, call in calls.items():
            rows.append([f"{name}: {what}", *costs(call, 2 if quick else 5)])
    return table(["", "ordinary, ms", "`batch_invariant`, ms", "ratio", "bound"], rows)


def costs(call: Callable[[], None], turns: int) -> list[str]:
    def inside() -> float:
        with mh.batch_invariant():
            call()
            return min(seconds(call) for _ in range(3))

    def outside() -> float:
        call()
        return min(seconds(call) for _ in range(3))

    times = common.take_turns({"outside": outside, "inside": inside}, turns)
    ratio = ratios(times["inside"], times["outside"])
    cells = [spread([1e3 * t for t in times[name]]) for name in ("outside", "inside")]
    return [*cells, spread(ratio), verdict(statistics.median(ratio), BOUND)]


def libraries() -> str:
    """The BLAS of NumPy, with the kernels that it chose for this CPU."""
    threadpoolctl = common.optional("threadpoolctl")
    found = threadpoolctl.threadpool_info() if threadpoolctl else []
    kinds = {
        f"{x['internal_api']} {x['version']} ({x.get('architecture')})"
        for x in found
        if x["user_api"] == "blas"
    }
    return f"BLAS: {', '.join(sorted(kinds)) or 'unknown'}."


def main() -> None:
    options = common.arguments(__doc__, quick="few runs, the smallest model").parse_args()
    page = f"""{TITLE}{first_table(3 if options.quick else 20)}

The second table compares the parameters after training with those of a second run: the same run
again, one with another number of threads, one that is interrupted and resumed after two steps, and
one with the batch divided between two ranks, which add up their gradients.

{second_table()}

The third table shows the price of `batch_invariant`, with {THREADS} threads. The two modes take
turns. A time is the shortest of three calls; the table shows the median over the turns, with the
quartiles in brackets.

{price(options.quick)}

{common.versions()} {common.machine()} {libraries()}
"""
    common.show(page, options.save)


if __name__ == "__main__":
    main()

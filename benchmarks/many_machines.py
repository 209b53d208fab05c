"""Simulate a training step on up to 1,024 ranks, which share it by each of the four methods.

python benchmarks/many_machines.py --save docs/many-machines-costs.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common import arguments, show, table

import minimha as mh

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOPS, BANDWIDTH, LATENCY = 1e14, 25e9, 5e-6  # of each rank: flop/s, bytes/s, seconds a message
RANKS, TOKENS, LONG = 2**10, 2**22, 2**17
V, M, L, H, G, D, F = 128_256, 4096, 32, 32, 8, 128, 14_336  # F: the width of the MLP
QKVO, MLP = [H * D * M, G * D * M, G * D * M, H * D * M], [F * M] * 3
WAYS = {  # the maximum number of ranks that share a layer, the look of its line
    "data": (RANKS, "#0072B2", "o", "-"),
    "heads": (G, "#D55E00", "s", (0, (1, 1))),
    "ulysses": (G, "#009E73", "^", (0, (5, 2))),
    "ring": (RANKS, "#CC79A7", "D", (0, (4, 2, 1, 2))),
}  # colours of Okabe and Ito, for the colour-blind

PAGE = """# What many machines cost

Several ranks (processes) can share the training of a model by one of four methods, which
[chapter 13](../notebooks/13_many_machines.ipynb) explains. This page compares their times.

**Simulated**, not measured: we had no machine with {ranks:,} ranks. The numbers of bytes and messages
come from `mh.cost.training_step`, and the tests check that ranks send exactly as many. The times
follow from these numbers and from the following assumptions:

| what | assumed |
| --- | --- |
| model | {parameters:.1f} billion parameters in float32: M = {M}, {L} layers, H = {H}, G = {G}, D = {D}, gated MLP of width {F:,}, vocabulary {V:,} |
| step | {tokens} tokens: B sequences of T tokens each, with causal attention |
| rank | computes {tera:.0f} Tflop/s and sends {giga:.0f} GB/s |
| message | takes {micro:.0f} µs, in addition to the time for its bytes |
| time of a step | all flops of a rank (attention in tiles: two matrix products forward and five backward), then all its messages, one after another: nothing overlaps |

`python benchmarks/many_machines.py --save docs/many-machines-costs.md` writes this page.

![Simulated seconds per step of the four methods, against the number of ranks and against T]({image})

## Sequences of {long:,} positions

A step has {sequences} sequences of this length. Each entry is the simulated time of a step in seconds; the
time for sending, which is a part of it, is in brackets.

{by_ranks}

A dash means that there are more ranks than parts: *data* needs a sequence for each rank,
*heads* and *ulysses* a key head, and *ring* a position.

- **data** is the fastest from 2 ranks on, as long as there is a sequence for each rank. It sends gradients and
  parameters, and their size depends neither on B nor on T.
- **ulysses** comes next, up to {G} ranks. What a rank sends decreases from 2 ranks on, and
  from {few} ranks on it is less than in the ring.
- **ring** can use as many ranks as positions. But keys and values go to all ranks, so the time
  for sending does not decrease: on {ranks:,} ranks it is {sending:.0f} s. The backward pass repeats the
  forward pass of each step: nine matrix products in place of seven. Of the numbers of ranks in the table, the ring
  is faster than *data* on {sequences} ranks from {cross} on.
- **heads** divides only the attention layers. Every rank computes the MLP for all tokens, and all
  ranks add up the outputs of their heads in every layer.

## All {ranks:,} ranks

Each method uses as many of the {ranks:,} ranks as it can. The number before the colon says how many.

{by_length}

Up to T = {last:,} *data* is the fastest, although some ranks are idle when there are fewer sequences
than ranks. From T = {first:,} on the **ring** is the fastest. At T = {longest:,} it takes {ring:,.0f} s,
*ulysses* {ulysses:,.0f} s and *data* {data:,.0f} s.

With *data* on {ranks:,} ranks, {latency:.0%} of the time for sending is latency, the {micro:.0f} µs of each
message: for each bucket (gradients that are sent together), a rank sends two messages to every other rank.

## What would change these results

- **16-bit numbers, or a faster network.** If sending took half the time, a step of the ring on {ranks:,} ranks
  would take {short:.0%} of the time at T = {shortest:,} and {half:.0%} at T = {longest:,}.
- **Sending while computing.** At best, a step takes as long as sending alone or computing alone, whichever
  takes longer.
- **A divided MLP.** Tensor parallelism in other libraries divides the MLP as well as the heads. *heads* would then
  compute less on each rank, and send about twice as much.
- **A sliding window.** Keys go only to ranks with queries that see them:
  `mh.cost.communication("ring", …, window=W)` counts these steps. (In a `GPT`, it is `window=W + 1`.)
- **Memory.** It is not counted here. With *data*, a rank holds all activations of a whole sequence. At
  T = {longest:,}, the inputs of the {L} layers alone take {inputs:.0f} GB.
- **Two methods at once.** Large training runs divide the sequences among groups of ranks, and heads or
  positions within a group.
"""  # noqa: E501


def sent(way: str, ranks: int, t: int) -> list[Any]:
    """What each rank sends in a step with sequences of T positions."""
    buckets = [V * M, *(MLP if way == "heads" else QKVO + MLP) * L, V * M, (2 * L + 1) * M]
    settings: dict[str, Any] = {"causal": True, "zigzag": True} if way == "ring" else {}
    return mh.cost.training_step(
        way, ranks, buckets, layers=L, **settings, B=TOKENS // t, T=t, M=M, H=H, G=G, D=D
    )


def seconds(way: str, ranks: int, t: int) -> tuple[float, float]:
    """The time of a step with sequences of T positions, and the part of it spent on sending."""
    b = TOKENS // t
    held = -(-b // ranks) if way == "data" else b  # sequences of a rank
    layers = {"dense": sum(QKVO + MLP) * L + V * M, "attention": L * H * D * t}
    # Two flops forward and four backward for each weight; in attention, where half of all pairs are
    # visible, two products forward and five backward.
    each = {"dense": 6.0, "attention": 7.0}
    flops = {name: each[name] * held * t * n for name, n in layers.items()}
    if way == "heads":
        flops["dense"] -= 6.0 * held * t * sum(QKVO) * L * (1 - 1 / ranks)
        flops["attention"] /= ranks
    elif way != "data":
        flops = {name: n / ranks for name, n in flops.items()}
    if way == "ring":
        flops["attention"] *= 9 / 7  # the forward pass of each step is computed again
    sending = max(x.seconds(LATENCY, BANDWIDTH) for x in sent(way, ranks, t))
    return sum(flops.values()) / FLOPS + sending, sending


def most(way: str, t: int) -> int:
    """The number of ranks that a method can use for sequences of T positions."""
    return min(WAYS[way][0], TOKENS // t if way == "data" else t)


def latency() -> float:
    """The share of latency in the time for sending, for the method data on all ranks."""
    of_rank = max(sent("data", RANKS, TOKENS // RANKS), key=lambda x: x.seconds(LATENCY, BANDWIDTH))
    return of_rank.messages * LATENCY / of_rank.seconds(LATENCY, BANDWIDTH)


def half_sending(times: tuple[float, float]) -> float:
    """The time of a step that sends in half the time, as a share of its time."""
    total, sending = times
    return 1 - sending / 2 / total


Times = dict[str, dict[int, tuple[float, float]]]


def drawn(by_ranks: Times, by_length: Times) -> Figure:
    """Both tables as lines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, times in ((left, by_ranks), (right, by_length)):
        for way, (_, colour, marker, dash) in WAYS.items():
            totals = [total for total, _ in times[way].values()]
            look = {"color": colour, "marker": marker, "linestyle": dash, "markersize": 4}
            axes.plot(list(times[way]), totals, label=way, **look)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    left.set(xlabel="ranks", ylabel="simulated time of a step, s", title=f"T = {LONG:,}")
    right.set(xlabel="positions T of a sequence", title=f"as many of {RANKS:,} ranks as possible")
    right.tick_params(axis="x", rotation=45)
    left.legend(frameon=False, handlelength=4)
    figure.suptitle("SIMULATED, not measured: a training step shared by each of four methods")
    return figure


def entry(times: tuple[float, float] | None) -> str:
    if times is None:
        return "–"
    total, sending = times
    digits = ",.0f" if total >= 1e4 else ",.4g"
    return f"{total:{digits}} ({sending:.3g})"


def main() -> None:
    options = arguments(__doc__, quick="few ranks and lengths").parse_args()
    counts = [2**k for k in range(0, 11, 10 if options.quick else 1)]
    lengths = [2**k for k in range(12, 21, 8 if options.quick else 1)]
    by_ranks: Times = {
        way: {n: seconds(way, n, LONG) for n in counts if n <= most(way, LONG)} for way in WAYS
    }
    by_length: Times = {way: {t: seconds(way, most(way, t), t) for t in lengths} for way in WAYS}
    image = options.save.with_suffix(".png") if options.save else None
    if image:
        mh.pictures.save(drawn(by_ranks, by_length), image)
    ranks = [[f"{n:,}", *(entry(by_ranks[way].get(n)) for way in WAYS)] for n in counts]
    rows = [
        [
            f"{t:,}",
            f"{TOKENS // t:,}",
            *(f"{most(way, t):,}: {entry(by_length[way][t])}" for way in WAYS),
        ]
        for t in lengths
    ]
    alone, ring = by_ranks["data"][max(by_ranks["data"])][0], by_ranks["ring"]
    wins = [t for t in lengths if by_length["ring"][t][0] < by_length["data"][t][0]]
    few = [n for n in counts if n in by_ranks["ulysses"] and by_ranks["ulysses"][n][1] < ring[n][1]]
    text = PAGE.format(
        M=M, L=L, H=H, G=G, D=D, F=F, V=V, ranks=RANKS, tokens="2²² = 4,194,304", long=LONG,
        parameters=(2 * V * M + L * sum(QKVO + MLP) + (2 * L + 1) * M) / 1e9,
        tera=FLOPS / 1e12, giga=BANDWIDTH / 1e9, micro=LATENCY * 1e6,
        image=image.name if image else "",
        by_ranks=table(["ranks", *WAYS], ranks),
        by_length=table(["T", "B", *WAYS], rows),
        sequences=TOKENS // LONG,
        few=next((n for n in few if n > 1), "no"),
        cross=next((f"{n:,}" for n in counts if ring.get(n, (alone,))[0] < alone), "no"),
        sending=ring[max(ring)][1],
        first=wins[0], last=wins[0] // 2, shortest=lengths[0], longest=lengths[-1],
        latency=latency(), inputs=4 * M * L * lengths[-1] / 1e9,
        short=half_sending(by_length["ring"][lengths[0]]),
        half=half_sending(by_length["ring"][lengths[-1]]),
        **{way: by_length[way][lengths[-1]][0] for way in ("ring", "ulysses", "data")},
    )  # fmt: skip
    show(text, options.save)


if __name__ == "__main__":
    main()

"""The cost of one step of decoding with a cache, for each way of sharing keys among heads."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..functional.checks import integer
from .attention import attention
from .comparison import table
from .primitives import Cost, Primitive, linear, product, short, total, walk
from .setting import Setting


class DecodingStep(NamedTuple):
    """What an attention layer takes to decode one token of each sequence.

    cache  bytes that the cache holds for each token of a sequence
    cost   the parameters of the layer, and the flops and the bytes moved of the step
    """

    cache: int
    cost: Cost


class Decoding(NamedTuple):
    """The kinds of attention side by side, such as "grouped", shown as a table with this title.
    `steps` has the `DecodingStep` of each kind, by its name."""

    title: str
    steps: dict[str, DecodingStep]

    def __repr__(self) -> str:
        rows = [("attention", "parameters", "cache per token", "flop", "bytes moved", "flop/byte")]
        for kind, step in self.steps.items():
            c = step.cost
            sizes = short(step.cache) + "B", short(c.flops).strip(), short(c.bytes) + "B"
            rows.append((kind, f"{c.parameters:,}", *sizes, f"{c.flops / c.bytes:.2g}"))
        return table(self.title, rows)


def decoding(*, S: int, C: int, Dr: int, G: int, Cq: int | None = None, **letters: Any) -> Decoding:
    """The costs of one step of decoding in one attention layer, for each of these kinds. In each of
    B sequences the new token is the last of S positions. It attends to all S positions, of which
    the earlier ones are in a cache.

        kind                                                        numbers in the cache per token
        multi-head        G = H                                     H·(D + Dv)
        grouped           G key heads                               G·(D + Dv)
        multi-query       G = 1                                     D + Dv
        latent            `LatentAttention`, keys and values made   C + Dr
        latent, absorbed  the same, in the absorbed form            C + Dr

    The flops that grow with S are 2·B·H·S·(D + Dv) for the first three, 2·B·H·S·(2·C + Dr) for the
    absorbed form, and for plain latent attention 2·B·H·S·(D + Dr + Dv), and 2·B·H·S·C·(D + Dv) to
    make the keys and values of all positions again.

    G          the number of key heads of the grouped kind
    C, Dr, Cq  the widths latent, rope_dim and query_latent of `LatentAttention`; Cq may be None
    letters    M, H, B, D, Dv and dtype, as in `Setting.of`; there are no biases

    Bytes are those of all operands and results: the absorbed form reads the latents twice, as keys
    and as values. The bytes of norms, rope and the new entries of the cache are not counted.

    Raises ValueError for sizes that do not match.
    """
    s = Setting.of(T=1, S=S, G=G, bias=False, **letters)
    z, n = s.sizes, s.B * S
    m, h, d, dv = z.d_model, z.num_heads, z.head_dim, z.v_head_dim
    for name, size in (("C", C), ("Dr", Dr), ("Cq", Cq or 1)):
        integer(size, name, least=1)

    def step(cache: int, matrices: list[tuple[int, int]], more: Cost, **heads: Any) -> DecodingStep:
        """The step of decoding for one kind of attention.

        cache     numbers in the cache for each token
        matrices  the shapes of the weights, without W^O; each multiplies one row per sequence
        more      the cost of whatever else this kind of attention computes
        heads     the G, D and Dv with which to count the attention
        """
        matrices = [*matrices, (h * dv, m)]
        products = [p for size in matrices for p in linear(s.B, *size, bias=False)]
        parameters = sum(rows * columns for rows, columns in matrices)
        cost = total(s, False, products, parameters=parameters) + more
        cost += attention(B=s.B, T=1, S=S, H=h, dtype=s.dtype, backward=False, **heads)
        return DecodingStep(cache * s.itemsize, cost)

    def shared(g: int) -> DecodingStep:
        matrices = [(m, h * d), (m, g * d), (m, g * dv)]
        return step(g * (d + dv), matrices, Cost(), G=g, D=d, Dv=dv)

    def latent(more: list[Primitive], **heads: Any) -> DecodingStep:
        matrices = [(m, C), (m, Dr), (Cq or m, h * d), (Cq or m, h * Dr)]
        matrices += [(m, Cq)] if Cq else []
        joined = walk(2 * s.B * (C + Dr)), walk(2 * s.B * h * heads["D"])  # latents and queries
        up_and_norms = C * h * (d + dv) + C + (Cq or 0)
        cost = total(s, False, [*more, *joined], parameters=up_and_norms)
        return step(C + Dr, matrices, cost, **heads)

    made = linear(n, C, h * d, bias=False) + linear(n, C, h * dv, bias=False)
    made.append(walk(n * (h * (2 * d + Dr) + Dr)))  # keys beside k^R
    made += [walk(2 * n * C, times=2)] if s.B > 1 else []  # latents of a batch, cut from the cache
    absorbed = product(s.B * h, 1, d, C, b=h * d * C) + product(s.B * h, 1, C, dv, b=h * C * dv)
    steps = {
        "multi-head": shared(h),
        "grouped": shared(z.num_kv_heads),
        "multi-query": shared(1),
        "latent": latent(made, G=h, D=d + Dr, Dv=dv),
        "latent, absorbed": latent(absorbed, G=1, D=C + Dr, Dv=C),
    }
    sizes = f"{s} C={C} Dr={Dr}" + (f" Cq={Cq}" if Cq else "")
    return Decoding(f"one step of decoding, {s.dtype}: {sizes}", steps)

"""The sizes of the projections."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from ..checks import integer


@dataclass(frozen=True)
class Sizes:
    """The widths M, Mk, Mv of the inputs, the numbers H, G of heads, the widths D, Dv of a head.

    Raises ValueError for a size below 1 and for an H that is not a multiple of G.
    """

    d_model: int
    kdim: int
    vdim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        for field in fields(self):
            integer(getattr(self, field.name), field.name, least=1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads = {self.num_heads} must be a multiple of num_kv_heads = "
                f"{self.num_kv_heads}: every key head serves the same number of query heads"
            )

    @classmethod
    def of(
        cls,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        v_head_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
    ) -> Self:
        """All sizes from those given: G is H, D is M/H, Dv is D, Mk is M and Mv is Mk by default.

        Raises ValueError where D is not given and H does not divide M.
        """
        integer(d_model, "d_model"), integer(num_heads, "num_heads")
        if head_dim is None:
            if d_model < 1 or num_heads < 1 or d_model % num_heads:
                raise ValueError(
                    f"d_model = {d_model} must be a positive multiple of num_heads = {num_heads}, "
                    "or head_dim be given"
                )
            head_dim = d_model // num_heads
        kdim = d_model if kdim is None else kdim
        return cls(
            d_model=d_model,
            kdim=kdim,
            vdim=kdim if vdim is None else vdim,
            num_heads=num_heads,
            num_kv_heads=num_heads if num_kv_heads is None else num_kv_heads,
            head_dim=head_dim,
            v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        )

    def roles(self) -> dict[str, tuple[int, int, int]]:
        """For q, k and v: the width of the input, the number of heads, the width of a head."""
        return {
            "q": (self.d_model, self.num_heads, self.head_dim),
            "k": (self.kdim, self.num_kv_heads, self.head_dim),
            "v": (self.vdim, self.num_kv_heads, self.v_head_dim),
        }

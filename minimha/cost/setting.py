"""The sizes of a computation."""

from __future__ import annotations

from dataclasses import dataclass

from ..functional.checks import integer
from ..projections.form import Sizes


@dataclass(frozen=True)
class Setting:
    """The sizes of a computation, in the letters of the glossary: `Setting.of(M=512, H=8, T=128)`.

    B, T, S  batch, query positions, key positions
    sizes    M, Mk, Mv (the widths of the inputs query, key and value), H query heads, G key heads,
             D and Dv (the widths of a key head and a value head)
    cross    whether query, key and value are three inputs instead of one
    bias     whether the projections have biases
    dtype    "float32" or "float64"
    """

    B: int
    T: int
    S: int
    sizes: Sizes
    cross: bool
    bias: bool
    dtype: str

    @classmethod
    def of(
        cls,
        *,
        T: int,
        H: int,
        M: int | None = None,
        B: int = 1,
        S: int | None = None,
        G: int | None = None,
        D: int | None = None,
        Dv: int | None = None,
        Mk: int | None = None,
        Mv: int | None = None,
        bias: bool = True,
        dtype: str = "float32",
    ) -> Setting:
        """Make a setting; `Setting` says what the letters mean. By default M is H·D and D is M/H,
        so one of the two must be given; G is H, Dv is D, Mk is M, Mv is Mk. Without S, Mk and Mv
        the setting is that of self-attention: one input, S = T.

        bias   whether the projections have biases
        dtype  "float32" or "float64"

        Raises ValueError for sizes that do not match.
        """
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype is float32 or float64, not {dtype!r}: others are converted")
        if M is None and D is None:
            raise ValueError("M or D must be given: D is M/H")
        H = integer(H, "H", least=1)
        M = integer(H * integer(D, "D") if M is None else M, "M", least=1)
        if D is None and M % H:
            raise ValueError(f"M = {M} must be a multiple of H = {H}, unless D is given")
        sizes = Sizes.of(M, H, num_kv_heads=G, head_dim=D, v_head_dim=Dv, kdim=Mk, vdim=Mv)
        return cls(
            B=integer(B, "B", least=1),
            T=integer(T, "T", least=1),
            S=integer(T if S is None else S, "S", least=1),
            sizes=sizes,
            cross=any(n is not None for n in (S, Mk, Mv)),
            bias=bias,
            dtype=dtype,
        )

    @property
    def itemsize(self) -> int:
        """The number of bytes of one number of the setting's dtype."""
        return {"float32": 4, "float64": 8}[self.dtype]

    @property
    def letters(self) -> dict[str, int]:
        """A dictionary of all sizes, by their letters."""
        z = self.sizes
        return {
            "B": self.B, "T": self.T, "S": self.S, "M": z.d_model, "Mk": z.kdim, "Mv": z.vdim,
            "H": z.num_heads, "G": z.num_kv_heads, "D": z.head_dim, "Dv": z.v_head_dim,
        }  # fmt: skip

    def __str__(self) -> str:
        sizes = self.letters
        default = {"S": "T", "Mk": "M", "Mv": "Mk", "G": "H", "Dv": "D"}
        shown = [k for k, n in sizes.items() if k not in default or n != sizes[default[k]]]
        return " ".join(f"{k}={sizes[k]}" for k in shown)

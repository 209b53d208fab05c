"""The positions of queries among keys: query i is at key position i + offset."""

from __future__ import annotations

from ..functional.checks import integer


def offset_of(who: str, t: int, s: int, offset: int | None = None, align: str | None = None) -> int:
    """The offset of T query positions among S key positions: query i is at key position i + offset.
    It is `offset` if this is given; S − T for the align "bottom-right"; and 0 for "top-left", or if
    T = S.

    who  the function or mask to name in messages

    Raises ValueError if T ≠ S and neither offset nor align is given, and the errors of `checked`.
    """
    offset = checked(who, offset, align)
    if offset is not None:
        return offset
    if align is None and t != s:
        raise ValueError(
            f"{who}: with T = {t} query and S = {s} key positions, choose the key that the "
            'first query is aligned with: offset=…, align="top-left" (offset 0) or '
            f'align="bottom-right" (offset S − T = {s - t})'
        )
    return s - t if align == "bottom-right" else 0


def checked(who: str, offset: int | None, align: str | None) -> int | None:
    """Check offset and align, and return the offset as an integer, or None if it is None. Raises
    ValueError if both are given, or for an align other than None, "top-left" and "bottom-right";
    TypeError for an offset that is not an integer. Messages name the function or mask `who`."""
    if offset is not None and align is not None:
        raise ValueError(f"{who}: give offset or align, not both")
    if align not in (None, "top-left", "bottom-right"):
        raise ValueError(f'{who}: align is "top-left" or "bottom-right", not {align!r}')
    return None if offset is None else integer(offset, f"{who}: offset")

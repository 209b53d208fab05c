"""The source of tasks as students get it, without anything that contains a solution."""

from __future__ import annotations

import ast
import re

from ..solutions import stubbed

ATTRIBUTES = ("mistake", "mistakes")
"""What a task's mistakes are added by."""


def public(text: str, *, hidden: bool = False) -> str:
    """The source without solutions, without the mistakes, which are edits of solutions, and without
    the third hints, which almost give the code.

    hidden  whether to leave out the hidden checks, too
    """
    data = stubbed(text).encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    cuts = []
    for node in ast.parse(data).body:
        if not isinstance(node, ast.FunctionDef):
            if any(isinstance(x, ast.Attribute) and x.attr in ATTRIBUTES for x in ast.walk(node)):
                cuts.append((starts[node.lineno - 1], starts[node.end_lineno or 0]))
            continue
        for decorator in node.decorator_list:
            for keyword in getattr(decorator, "keywords", []):
                value = keyword.value
                if keyword.arg == "hints":
                    if not isinstance(value, ast.Tuple | ast.List):
                        raise ValueError(f"{node.name}: write the hints into the decorator")
                    cuts.append((_end(value.elts[:2][-1], starts), _end(value.elts[-1], starts)))
                if keyword.arg == "hidden" and hidden and ast.literal_eval(value):
                    above = min(x.lineno for x in node.decorator_list)
                    cuts.append((starts[above - 1], starts[node.end_lineno or 0]))
    for first_byte, last_byte in sorted(cuts, reverse=True):
        data = data[:first_byte] + data[last_byte:]
    return re.sub(r"\n{4,}", "\n\n\n", data.decode()).rstrip() + "\n"


def _end(node: ast.expr, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset

"""Removes everything that contains a solution from the source of tasks, to make what students
get."""

from __future__ import annotations

import ast
import re

from ...checks.solutions import stubbed

ATTRIBUTES = ("mistake", "mistakes")
"""The names of the methods and attributes by which a source adds mistakes to a task."""


def public(text: str, *, hidden: bool = False) -> str:
    """Return the source `text` of tasks without solutions, without the mistakes, which are edits of
    solutions, and without the third hints, which nearly give the code away.

    hidden  whether to leave out the hidden checks, too, which teachers keep for grading

    Raises ValueError if the hints of a task are not a tuple or list in its decorator.
    """
    data = stubbed(text).encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    cuts = []
    for node in ast.parse(data).body:
        name, calls, secret = "", list[ast.expr](), False
        if isinstance(node, ast.FunctionDef):
            name, calls = node.name, node.decorator_list
        else:
            calls = [node.value] if isinstance(node, ast.Expr) else []
            inside = ast.walk(node)
            secret = any(isinstance(x, ast.Attribute) and x.attr in ATTRIBUTES for x in inside)
        settings = {k.arg: k.value for call in calls for k in getattr(call, "keywords", [])}
        if secret or (hidden and "hidden" in settings and ast.literal_eval(settings["hidden"])):
            first = min([node.lineno, *(call.lineno for call in calls)])
            cuts.append((starts[first - 1], starts[node.end_lineno or 0]))
        elif hints := settings.get("hints"):
            if not isinstance(hints, ast.Tuple | ast.List):
                raise ValueError(f"{name}: write the hints into the decorator")
            cuts.append((_end(hints.elts[:2][-1], starts), _end(hints.elts[-1], starts)))
    for first_byte, last_byte in sorted(cuts, reverse=True):
        data = data[:first_byte] + data[last_byte:]
    return re.sub(r"\n{4,}", "\n\n\n", data.decode()).rstrip() + "\n"


def _end(node: ast.expr, starts: list[int]) -> int:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return starts[node.end_lineno - 1] + node.end_col_offset

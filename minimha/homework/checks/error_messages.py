"""The message that a student reads about an error: the line of their file, the values in that line,
and what to write in NumPy if the error comes from a habit from PyTorch."""

from __future__ import annotations

import inspect
import re
import traceback
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from minimha_autograd.gradcheck import labelled

from ...diagnosis.causes import ALL_PAIRS
from .shown import without_addresses

MOST = 800
"""The number of characters of a message that are searched: the time that some patterns take grows
with the fourth power of the length."""
NAMES = 6
"""The largest number of variables in a line that are shown with their values."""

_KEYWORDS = {
    "dim": "the keyword is axis: axis=-1",
    "keepdim": "the keyword is keepdims: keepdims=True",
    "unbiased": "leave it out: x.std() and x.var() divide by the number of entries",
    "diagonal": "the keyword is k: np.triu(x, k=1)",
}
_ATTRIBUTES = {
    "bmm": "a @ b",
    "cat": "np.concatenate([a, b], axis=-1)",
    "chunk": "np.split(x, 3, axis=-1)",
    "clone": "x.copy()",
    "contiguous": "leave it out: reshape copies when it has to",
    "detach": "leave it out: arrays record no gradients",
    "dim": "x.ndim",
    "expand": "np.broadcast_to(x, shape)",
    "float": "x.astype(float)",
    "masked_fill": "np.where(mask, value, x)",
    "mm": "a @ b",
    "numpy": "leave it out: x is an array already",
    "permute": "x.transpose(0, 2, 1), which lists all axes",
    "repeat_interleave": "np.repeat(x, count, axis=-3)",
    "softmax": "there is no softmax: write it with np.exp and a sum",
    "split": "np.split(x, 3, axis=-1)",
    "t": "x.T, or x.swapaxes(-2, -1) with more than two axes",
    "tensor": "np.array",
    "unsqueeze": "np.expand_dims(x, axis), or None in an index: x[:, None]",
    "values": "x.max(axis=-1) returns the values alone",
}
_SWAP = "x.swapaxes({0}, {1}): transpose lists all axes, swapaxes swaps two"
_HABITS: dict[str, Any] = {
    r"got an unexpected keyword argument '(\w+)'": _KEYWORDS.get,
    r"'(\w+)' is an invalid keyword": _KEYWORDS.get,
    r"(?:ndarray' object|module 'numpy') has no attribute '(\w+)'": lambda name: (
        _ATTRIBUTES.get(name) or (f"np.{name}(x)" if hasattr(np, name) else None)
    ),
    r"sub-type of ndarray|: view\(\)": "x.reshape, with the same numbers",
    r"transpose\((?:\w+, *)?(-\d), *(-\d)\)": _SWAP,
    r"(?:axes don't match|transpose\(\) takes).*transpose\((?:\w+, *)?(\d), *(\d)\)": _SWAP,
    r"'int' object is not callable.*\.size\(": "x.shape[-1], or x.shape for all axes",
    r"'tuple' object is not callable.*\.shape\(": "x.shape[-1], in square brackets",
    r"as a data type.*np\.(\w+)\(": "np.{}((2, 3)): the shape is one tuple",
    r"'(?:torch|F)' is not defined|module named 'torch'": (
        "write np: np.zeros, np.exp and most other functions have the same names"
    ),
    r"values to unpack.*\.shape": "*batch, t, m = x.shape works for any number of axes in front",
    r"'float' object cannot be interpreted as an integer": "a size is an integer: M // H",
    r"float(?:64)?' object is not callable.*\.(imag|real)\(": "x.{0}, without ()",
    r"name 'j' is not defined": "1j is the imaginary unit",
    r"setting an array element with a sequence": (
        "an array holds one number in each place: is a sum, or an index, missing?"
    ),
    r"no '\.\.\.' ellipsis": (
        "einsum does not sum over …: first make one matrix of all rows, x.reshape(-1, x.shape[-1])"
    ),
    r"'math' is not defined": "np.sqrt, np.exp, np.inf",
    r"(?:broadcast|dimension|aligned).*line \d+: [^\n]*\b(\w+)\.T\b.*\1 has shape \(\d+, \d+, \d": (
        "{0}.T reverses all axes; {0}.swapaxes(-2, -1) swaps the last two"
    ),
    r"together with shapes \((?:\d+,)*(\d+)\) \((?:\d+,)*\1,\d+\).*line \d+: [^\n]*[^*]\*[^*]": (
        "* multiplies entry by entry, @ is the product of matrices"
    ),
    r"core dimension 0.*\(size (\d+) is different from (\d+)\)": (
        "@ multiplies (…, n, k) by (…, k, m): k is {1} on the left and {0} on the right"
    ),
    r"(?:Deprecation|Future)Warning: (?=[^\n]*\b(?:dot|inner)\b)[^\n]*(?:dimension|ndim|\dD).*"
    r"line \d+: [^\n]*\b(?:dot|inner)\(": ALL_PAIRS,  # the words that NumPy may use one day
    r"shapes \(\d+,\d+,\d[\d,]*\) and \(\d+,\d+,\d[\d,]*\) not aligned": ALL_PAIRS,
    r"not aligned: (\d+) \(dim \d+\) != (\d+).*line \d+: [^\n]*\binner\(": (
        "np.inner multiplies (…, n, k) by (…, m, k): k is {0} on the left and {1} on the right"
    ),
    r"not aligned: (\d+) \(dim \d+\) != (\d+)": (
        "np.dot multiplies (…, n, k) by (…, k, m): k is {0} on the left and {1} on the right"
    ),
    r"array split does not result in an equal division": (
        "np.split(x, n) cuts axis 0 and np.split(x, n, axis=-1) the columns; the length of that "
        "axis must be a multiple of n"
    ),
    r"cannot reshape array of size (\d+)": (
        "the lengths of the new shape have to multiply to {0}; one of them may be -1"
    ),
    r"could not broadcast input array from shape (\(.*?\)) into shape (\(.*?\))": (
        "what is assigned has the shape {0}, its place {1}: are the axes in front missing there?"
    ),
    r"out of bounds for axis 0.*line \d+: .*\[[a-z]\].* has shape \(\d+, \d": (
        "an integer k picks a row, x[k]; np.ndindex(x.shape) counts through all entries"
    ),
    r"tuple index out of range": "there are fewer axes than this line assumes",
    r"truth value of an array": "x is None, x.any() or x.all(): an array is not true or false",
    r"maximum recursion depth": "a loop, over a list of what is left to do, has no limit of depth",
}
"""Advice on what to write in NumPy, by a pattern that fits the message of an error and the line
that led to it."""


def file_of(function: Callable[..., Any]) -> str | None:
    """Return the file in which a function was defined, or None if it is unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code and str(code.co_filename)


def error_message(error: BaseException, file: str | None) -> str:
    """Return the message for a student: the message of a check, or an error in the student's own
    code with its line. `file` is the student's file, None if it is unknown."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].filename
    if isinstance(error, AssertionError) and innermost != file:
        return text_of(error)
    return error_with_line(error, file)


def text_of(error: BaseException) -> str:
    """Return the text of an error, without the addresses in memory of values that it quotes, as in
    "<function f at 0x7f…>"."""
    return without_addresses(str(error))


def error_with_line(error: BaseException, file: str | None) -> str:
    """Describe an error: its text, the innermost line of this file that led to it, and the
    variables in that line.

    If that line is in a helper, the line of the outer function that called it follows.
    """
    lines = [f"{type(error).__name__}: {text_of(error)}".rstrip(": ")]
    places = _places(error, file)
    if places:
        frame, last = places[-1]
        lines.append(f"  in {last.name}, line {last.lineno}: {last.line}")
        if values := _values(frame, last.line or ""):
            lines.append(f"  where {', '.join(values)}")
        first_frame, first = places[0]
        if first_frame is not frame:
            lines.append(f"  called in {first.name}, line {first.lineno}: {first.line}")
    if words := _in_numpy("\n".join(lines)):
        lines.append(labelled("in NumPy", words))
    return "\n".join(lines)


def _in_numpy(message: str) -> str | None:
    """Return advice on what to write in NumPy if the error message shows a habit from PyTorch, or
    that shapes do not fit; otherwise None."""
    for pattern, words in _HABITS.items():
        if found := re.search(pattern, message[:MOST], re.DOTALL):
            return words(found[1]) if callable(words) else words.format(*found.groups())
    return None


def line_of(error: BaseException, file: str | None) -> str:
    """Return the innermost line of this file that led to an error, as in "line 14: …"; "" if there
    is none."""
    places = _places(error, file)
    return f"line {places[-1][1].lineno}: {places[-1][1].line}" if places else ""


def _places(
    error: BaseException, file: str | None
) -> list[tuple[types.FrameType, traceback.FrameSummary]]:
    """Return the stack frames of this file through which an error passed, outermost first, and a
    summary of each with its line."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    pairs = zip(frames, traceback.extract_tb(error.__traceback__), strict=True)
    return [(frame, summary) for frame, summary in pairs if summary.filename == file]


def _values(frame: types.FrameType, line: str) -> list[str]:
    """Describe the variables in a line as they were when the line failed: "x has shape (4, 6)"."""
    names = dict.fromkeys(re.findall(r"(?<![\w.])[^\W\d]\w*", line))
    known = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    facts = [f"{name} {fact}" for name, x in known.items() if (fact := _fact(x))]
    return facts[:NAMES]


def _fact(x: Any) -> str:
    """Return a short description of a value, such as "has shape (4, 6)" for an array or "is 3" for
    a number; for a long value, its type."""
    if isinstance(x, np.ndarray) or type(x).__name__ == "Memory":  # an array in a kernel
        return f"has shape {x.shape}{'' if x.dtype == float else f', {x.dtype}'}"
    if callable(x) or isinstance(x, types.ModuleType):
        return ""
    if hasattr(x, "rank"):  # a communicator
        return f"is rank {x.rank} of {x.size}"
    kind = type(x).__name__
    short = x.item() if isinstance(x, np.generic) else x
    return f"is {short!r}" if _short(short) else f"is a{'n' * (kind[0] in 'aeiou')} {kind}"


def _short(x: Any) -> bool:
    if type(x) in (tuple, list):
        return len(x) < 8 and all(type(y) is int and _short(y) for y in x)
    if type(x) is int:
        return abs(x) < 1e15
    return len(x) < 30 if type(x) is str else type(x) in (type(None), bool, float, complex)

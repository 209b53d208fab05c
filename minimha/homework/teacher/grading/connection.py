"""A connection between two processes, over which each can call the other's functions.

It uses only NumPy, the standard library and `nested`, because worker.py at the far end has nothing
else.
"""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import json
import math
import re
import struct
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from minimha.homework.checks.nested import packed, unpacked

MOST = 1 << 24
"""The largest number of bytes that the arrays in one message may have."""
_MOST_TEXT = 1 << 20
_SIGNATURE = -1
"""The number of a function that both ends have: it returns the parameters of another function."""
NO_ANSWER = "it sent back an invalid answer"

_ERRORS = {
    error.__name__: error
    for error in (
        ArithmeticError, AssertionError, AttributeError, FloatingPointError, ImportError,
        IndexError, KeyError, LookupError, MemoryError, NameError, NotImplementedError, OSError,
        OverflowError, RecursionError, RuntimeError, TypeError, ValueError, ZeroDivisionError,
    )
}  # fmt: skip


class ConnectionLost(BaseException):
    """The process at the other end of the connection has stopped, or sent an invalid answer.

    It is not an Exception, so that no check mistakes it for an error of the student's function.
    """


class RemoteFunction:
    """A function of the process at the other end, which can be called like a local one."""

    def __init__(self, connection: Connection, number: int, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self._connection, self._number = connection, number

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        return self._connection.call(self._number, arguments, settings)

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        """The function's signature. It is requested from the other end only when it is read,
        because most signatures are never read."""
        parameters = self._connection.call(_SIGNATURE, [self], {})
        return inspect.Signature([_parameter(*p) for p in parameters])


RemoteFunction.__name__ = "function"  # the name that messages show


class Connection:
    """One end of a connection over which both ends call each other's functions.

    read(n) returns the next n bytes from the other end, and write(data) sends bytes to it.
    Arguments and results are arrays, numbers, text, None, tuples, lists and dictionaries of these,
    and functions. Functions are not sent: the other end gets a RemoteFunction. Received data is
    never executed.

    A message consists of the number of bytes of its JSON, that of its arrays, the JSON, and the
    bytes of the arrays. The JSON is one of

        ["call", number of the function, arguments, settings]
        ["return", value, [[k, new entries of the k-th array lent], …]]
        ["raise", names of the error's classes, text]

    To a function that it calls, an end lends arrays: those in the arguments, and those that its own
    functions return to the called function. The called function gets copies; "return" lists those
    that it changed in place. If the function returns a copy that it has not changed, the caller
    gets its own object back.
    """

    LAUNCH, RUN = -2, -3
    """The numbers of two functions in the grader's process: the first runs the blocks of a kernel,
    the second runs ranks."""

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], None]) -> None:
        self._read, self._write = read, write
        self.functions: dict[int, Callable[..., Any]] = {}
        self.always: dict[int, Callable[..., Any]] = {_SIGNATURE: _parameters}
        self._numbers = itertools.count()
        self.caught: type[BaseException] = Exception
        self.files: Collection[str] = ()  # errors quote the lines of these files
        self.changed = False  # whether the other end changed lent arrays
        self.restores = False  # whether to change them here too
        self._lent: list[list[np.ndarray]] = []  # to the calls in progress
        self._borrowed: list[list[tuple[np.ndarray, bytes]]] = []  # with the bytes they had

    def call(self, number: int, arguments: Sequence[Any], settings: dict[str, Any]) -> Any:
        """Call the function with this number at the other end, and return its value. Meanwhile,
        answer the calls that the other end makes.

        If the function raises an error, an error of a class with the same name, made by `_error`,
        is raised here. Raises ConnectionLost if there is no valid answer.
        """
        self._lent.append(self._send(["call", number, tuple(arguments), dict(settings)]))
        try:
            while True:
                (kind, *content), arrays = self._receive()
                match kind, content:
                    case "call", [int(), tuple(), dict()]:
                        self._answer(content, arrays)
                    case "return", [value, list(changed)]:
                        self._borrow(arrays)
                        self._restore(changed)
                        return value
                    case "raise", [list(names), str(text)]:
                        raise _error(names, text)
                    case _:
                        raise ConnectionLost(NO_ANSWER)
        finally:
            self._lent.pop()

    def serve(self) -> None:
        """Answer calls until the process ends."""
        while True:
            (_, *content), arrays = self._receive()
            self._answer(content, arrays)

    def give(self, function: Callable[..., Any]) -> int:
        """Return a number by which the other end can call this function."""
        number = next(self._numbers)
        self.functions[number] = function
        return number

    def _answer(self, content: list[Any], arrays: list[np.ndarray]) -> None:
        number, arguments, settings = content
        self._borrowed.append([])
        self._borrow(arrays)
        try:
            function = (self.functions if number >= 0 else self.always)[number]
            value = function(*arguments, **settings)

            # The other end has the originals: send what the function changed in its copies.
            here = enumerate(self._borrowed_now())
            changed = [[k, a.copy()] for k, (a, before) in here if a.tobytes() != before]
            sent = self._send(["return", value, changed])
            if self._lent:
                self._lent[-1] += sent
        except self.caught as error:  # the function's own error, or its value cannot be sent
            names = [kind.__name__ for kind in type(error).__mro__]
            self._send(["raise", names, _text(error, self.files)])
        finally:
            self._borrowed.pop()

    def _borrowed_now(self) -> list[tuple[np.ndarray, bytes]]:
        """Return the arrays that the other end has lent to the function that it called last and
        that is still running here: pairs of the copy here and the bytes that it had at first. Empty
        if no such function runs."""
        return self._borrowed[-1] if self._borrowed else []

    def _borrow(self, arrays: list[np.ndarray]) -> None:
        self._borrowed_now().extend((array, array.tobytes()) for array in arrays)

    def _restore(self, changed: list[Any]) -> None:
        """Note in `self.changed` whether the other end changed its copies of arrays that were lent
        to it. If `self.restores` is set, make the same changes in the arrays themselves.

        changed  a list of [k, new]: the array `new` has the new entries of the k-th array lent
        """
        self.changed = self.changed or bool(changed)
        for change in changed if self.restores else []:
            match change:
                case [int(k), np.ndarray() as new] if 0 <= k < len(self._lent[-1]):
                    old = self._lent[-1][k]
                    if (new.shape, new.dtype) != (old.shape, old.dtype):
                        raise ConnectionLost(NO_ANSWER)
                    if old.flags.writeable:
                        old[...] = new
                case _:
                    raise ConnectionLost(NO_ANSWER)

    def _send(self, message: list[Any]) -> list[np.ndarray]:
        """Send a message, one of the lists that the docstring of the class shows. Returns the
        arrays whose entries it contains, in order. Raises ValueError if the message is too large,
        TypeError if it contains a value that cannot be sent."""
        arrays: list[np.ndarray] = []
        text = json.dumps(self._packed(message, arrays)).encode()
        size = sum(array.nbytes for array in arrays)
        if size > MOST or len(text) > _MOST_TEXT:
            raise ValueError(f"{(size + len(text)) / 1e6:.3g} MB are too large for one message")
        data = [struct.pack(">II", len(text), size), text, *(a.tobytes() for a in arrays)]
        self._write(b"".join(data))
        return arrays

    def _receive(self) -> tuple[list[Any], list[np.ndarray]]:
        """Wait for the next message. Returns it, and the arrays whose entries it contained, in
        order. Raises ConnectionLost if it is invalid."""
        length, size = struct.unpack(">II", self._read(8))
        if length > _MOST_TEXT or size > MOST:
            raise ConnectionLost(NO_ANSWER)
        text, body = self._read(length), io.BytesIO(self._read(size))
        arrays: list[np.ndarray] = []
        try:
            message = self._unpacked(json.loads(text), body, arrays)
            if not isinstance(message, list) or body.read():
                raise ValueError("a message is a list, and all its bytes belong to its arrays")
            return message, arrays
        except Exception:  # whatever is wrong with it
            raise ConnectionLost(NO_ANSWER) from None

    def _packed(self, value: Any, arrays: list[np.ndarray]) -> Any:
        """Convert a value to what JSON can store, and return that. In the JSON, the dtype and the
        shape stand in place of an array or a NumPy scalar; its entries follow after the JSON, so it
        is added to `arrays`. But an array that the other end has lent, and that the function here
        has not changed, is not sent back: only its number among the lent arrays is.

        Raises TypeError for a value that cannot be sent.
        """

        def leaf(x: Any) -> Any:
            for k, (lent, before) in enumerate(self._borrowed_now()):
                if lent is x and lent.tobytes() == before:
                    return ["lent", k]
            match x:
                case np.ndarray() | np.generic():
                    array = np.asarray(x)
                    if array.dtype.kind not in "biufc":
                        raise TypeError(f"an array of dtype {array.dtype} cannot be sent")
                    arrays.append(array)
                    return ["array", array.dtype.str, array.shape, isinstance(x, np.generic)]
                case None | bool() | int() | float() | str():
                    return x
                case complex():
                    return ["complex", x.real, x.imag]
                case RemoteFunction() if x._connection is self:
                    return ["yours", x._number]
            if callable(x) and not isinstance(x, type):
                name = str(getattr(x, "__name__", type(x).__name__))
                return ["function", self.give(x), name]
            raise TypeError(
                f"a {type(x).__name__} cannot be sent, only arrays, numbers, text, None, "
                "functions, and tuples, lists and dictionaries of these"
            )

        return packed(leaf, value)

    def _unpacked(self, item: Any, body: io.BytesIO, arrays: list[np.ndarray]) -> Any:
        """Return the value that `_packed` converted to `item`. Its arrays get their entries from
        `body`, the bytes after the JSON of the message, and are added to `arrays`, in order. Raises
        an error of any class if the data is invalid."""

        def leaf(x: Any) -> Any:
            match x:
                case ["array", str(dtype), list(shape), bool(scalar)]:
                    array = _array(dtype, shape, body)
                    arrays.append(array)
                    return array[()] if scalar else array
                case ["complex", float(real), float(imag)]:
                    return complex(real, imag)
                case ["function", int(number), str(name)]:
                    return RemoteFunction(self, number, name[:80])
                case ["lent", int(k)] if k >= 0:
                    return self._lent[-1][k]
                case ["yours", int(number)]:
                    return self.functions[number]
                case list():
                    raise ValueError(f"unknown type {x[:1]}")
            return x

        return unpacked(leaf, item)


def _array(dtype: str, shape: list[Any], body: io.BytesIO) -> np.ndarray:
    if not re.fullmatch(r"[<>|][biufc]\d{1,2}", dtype):
        raise ValueError(f"dtype {dtype}")
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"shape {shape}")
    kind = np.dtype("u1" if dtype[1] == "b" else dtype)
    if math.prod(n or 1 for n in shape) * kind.itemsize > MOST:
        raise ValueError(f"shape {shape}: a sum over the axis of length 0 would be too large")
    data = bytearray(body.read(min(MOST, math.prod(shape) * kind.itemsize)))
    array = np.frombuffer(data, kind) if data else np.empty(0, kind)
    array = array.reshape(shape)
    return np.asarray(array != 0) if dtype[1] == "b" else array  # a byte of 2 is not a valid bool


def _parameter(name: str, kind: int, optional: bool) -> inspect.Parameter:
    default = None if optional else inspect.Parameter.empty
    return inspect.Parameter(name, inspect._ParameterKind(kind), default=default)


def _parameters(function: Callable[..., Any]) -> Any:
    """Return the name and the kind of each parameter of a function, and whether it has a default.
    From these, the other end builds a signature."""
    parameters = inspect.signature(function).parameters.values()
    return [[p.name, int(p.kind), p.default is not p.empty] for p in parameters]


def _text(error: BaseException, files: Collection[str]) -> str:
    """Return an error's message. If the error's traceback leads through lines of these files, the
    message ends with the last such line, its number and the name of its function."""
    try:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        text = str(text)[:2000].strip()
    except Exception:  # a class of the student's own may fail here
        text = ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files:
            return f"{text}\n  in {frame.name}, line {frame.lineno}: {frame.line}"
    return text


def _error(names: list[Any], text: str) -> Exception:
    """Return an error with this text. `names` are those of the original class and of the classes
    from which it is derived. The new class has the first of these names, and is derived from the
    first built-in class among them, such as ValueError, or else from Exception."""
    base = next((_ERRORS[name] for name in names if name in _ERRORS), Exception)
    name = str(names[0])[:80] if names else base.__name__
    return type(name, (base,), {"__str__": lambda self: text})(text)

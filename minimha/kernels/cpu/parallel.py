"""Threads that share the work of one call of a kernel.

    @kernel
    def double(chunk, x):
        if distributed(chunk):
            return
        for i in range(chunk[0], chunk[1]):
            x[i] *= 2

    double(whole(len(x), chunks), x)

Python calls the kernel once, for a whole range. This call divides the range into chunks and calls
the kernel again for each of them, with the other arguments unchanged: from its own thread, the
leader, and from helper threads.

Waking a thread takes a tenth of a millisecond, as long as attention over 128 positions, and waiting
for the interpreter's lock may take longer. So a helper that has finished keeps looking for work for
about two milliseconds, while yielding its core to any thread that wants it, and calls the kernel by
its address, without Python. The leader takes chunks from the front of the range and helpers take
them from the back: so a core mostly gets the same part of the data in every operation and finds it
in its cache.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.extending import intrinsic

from .. import threads
from .jit import kernel

WORK, FUNCTION, ARGUMENTS, START, STOP, CHUNKS, DONE, FAILED, BUSY, AWAKE = range(0, 80, 8)
"""Entries of the board, through which a leader and its helpers communicate, each in a cache line of
its own: the chunks left; the function that computes a chunk; its arguments; the range; the number
of chunks, and of those finished; whether one failed; whether there is a leader; how many helpers
are awake."""
_END, _SEATS = 16, 32
"""Bit positions in WORK of the end of the chunks left and of the number of helpers that may still
join; the first chunk left is at bit 0. They share a number so that they change together."""
_CHUNK, _HELPERS = 2**16 - 1, 2**8 - 1
"""The largest numbers of chunks and of helpers."""
_LOOKS = 10_000
"""How often a helper looks for work before it goes to sleep."""


def whole(count: int, chunks: int = 1) -> tuple[int, int, int, np.ndarray]:
    """range(count) as a kernel's first argument, to be divided into this many chunks.

    (0, count, 0 or the numbers of chunks and helpers, the board). All callers share
    `threads.number()` − 1 helpers. A call never waits for a helper to wake up.
    """
    chunks = min(chunks, _CHUNK)
    helpers = min(chunks, threads.number(), _HELPERS + 1) - 1
    if helpers < 1:
        return 0, count, 0, _pool.board
    _pool.wake(helpers)
    return 0, count, chunks << 8 | helpers, _pool.board


class _Pool:
    """Helper threads, started when they are first needed."""

    def __init__(self) -> None:
        self.board = np.zeros(80, np.int64)
        self.calls: SimpleQueue[None] = SimpleQueue()
        self.size, self.lock = 0, threading.Lock()

    def wake(self, helpers: int) -> None:
        """Make sure that this many helpers are awake or about to be."""
        with self.lock:
            while self.size < helpers:
                threading.Thread(
                    target=_help, args=(self.board, self.calls), name="minimha", daemon=True
                ).start()
                self.size += 1
            for _ in range(helpers - int(self.board[AWAKE]) - self.calls.qsize()):
                self.calls.put(None)


def _help(board: np.ndarray, calls: SimpleQueue[None]) -> None:
    while True:
        calls.get()
        serve(board, _LOOKS)


_pool = _Pool()
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]


@kernel
def own(x: Any, chunk: Any) -> Any:
    """The entries or rows of x that belong to a chunk. Places counted from 0 vectorise better."""
    return x[chunk[0] : chunk[1]]


_INTEGER, _POINTER = ir.IntType(64), ir.IntType(8).as_pointer()
_CODE = ir.IntType(32)
_CALL = ir.FunctionType(_CODE, [_POINTER, _INTEGER, _INTEGER])
"""A function that computes a chunk: (kernel's arguments, start, stop) -> 0, or 1 if it failed."""


@intrinsic
def distributed(typing, chunk):
    """Whether the range was divided, and everything in it is computed: then the kernel returns.

    chunk, (start, stop, division, board), is the kernel's first argument. False if this call is to
    compute it. While a call is being divided, calls from other threads compute their chunks
    themselves. Raises MemoryError if a chunk failed, when all others are finished.
    """
    lead = types.boolean(chunk[3], *[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        start, stop, division, board = cgutils.unpack_tuple(builder, given[0])
        this = builder.function
        held = cgutils.alloca_once(builder, ir.LiteralStructType([x.type for x in this.args]))
        divide = builder.icmp_signed("!=", division, division.type(0))
        with builder.if_then(divide, likely=False):
            for n, x in enumerate(this.args):
                builder.store(x, cgutils.gep_inbounds(builder, held, 0, n))
            addresses = [builder.ptrtoint(x, _INTEGER) for x in (_for_chunk(this, held.type), held)]
            compiled = _lead.get_compile_result(lead)
            context.active_code_library.add_linking_library(compiled.library)
            function = context.declare_function(builder.module, compiled.fndesc)
            values = board, start, stop, division, *addresses
            _, well = context.call_conv.call_function(
                builder, function, lead.return_type, lead.args, values
            )
            with builder.if_then(builder.not_(well), likely=False):
                text = "a kernel ran out of memory (or, with bounds checked, left an array)"
                context.call_conv.return_user_exc(builder, MemoryError, (text,))
        return divide

    return types.boolean(chunk), generate


def _for_chunk(kernel: Any, arguments: Any) -> Any:
    """The _CALL that calls a kernel for a chunk. A kernel's first arguments are where to put its
    result and an exception, start, stop and division."""
    function = ir.Function(kernel.module, _CALL, kernel.module.get_unique_name("chunk"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    pointer, start, stop = function.args
    pointer = builder.bitcast(pointer, arguments)
    values = [
        builder.load(cgutils.gep_inbounds(builder, pointer, 0, n)) for n in range(len(kernel.args))
    ]
    values[:2] = [builder.alloca(x.type.pointee) for x in values[:2]]
    values[2:5] = start, stop, _INTEGER(0)
    code = builder.call(kernel, values)
    well = [builder.icmp_signed("==", code, n) for n in (RETCODE_OK, RETCODE_NONE)]
    builder.ret(builder.select(builder.or_(*well), _CODE(0), _CODE(1)))
    return function


@kernel
def serve(board: Any, looks: int) -> None:
    """What a helper does while it is awake: help, until there was no work this many times."""
    _add(board, AWAKE, 1)
    looked = 0
    while looked < looks:
        work = _load(board, WORK)
        seats = work >> _SEATS if _left(work) else 0
        if seats and _swap(board, WORK, work, work - (1 << _SEATS)):
            _compute_chunks(board, True)
            looked = 0
        else:
            _yield_core()
            looked += 1
    _add(board, AWAKE, -1)


@numba.njit
def _lead(board, start, stop, division, function, arguments):
    """Divide the range and compute it, with any helpers. Returns whether no chunk failed."""
    chunks, helpers, failed = division >> 8, division & _HELPERS, 0
    if not _swap(board, BUSY, 0, 1):  # another thread leads
        for k in range(chunks):
            failed |= _do(function, arguments, *_bounds(start, stop, k, chunks))
        return failed == 0
    _store(board, FUNCTION, function), _store(board, ARGUMENTS, arguments)
    _store(board, START, start), _store(board, STOP, stop), _store(board, CHUNKS, chunks)
    _store(board, DONE, 0), _store(board, FAILED, 0)
    _store(board, WORK, helpers << _SEATS | chunks << _END)
    _compute_chunks(board, False)
    while _load(board, DONE) < chunks:
        _yield_core()
    failed = _load(board, FAILED)
    _store(board, BUSY, 0)
    return failed == 0


@numba.njit
def _compute_chunks(board, from_back):
    """Compute chunks while any are left. What is on the board is valid until all are done."""
    work = _load(board, WORK)
    while _left(work):
        k = ((work >> _END) & _CHUNK) - 1 if from_back else work & _CHUNK
        if _swap(board, WORK, work, work - (1 << _END) if from_back else work + 1):
            start, stop = _load(board, START), _load(board, STOP)
            chunk = _bounds(start, stop, k, _load(board, CHUNKS))
            if _do(_load(board, FUNCTION), _load(board, ARGUMENTS), *chunk):
                _store(board, FAILED, 1)
            _add(board, DONE, 1)
        work = _load(board, WORK)


@numba.njit
def _bounds(start, stop, k, chunks):
    return start + (stop - start) * k // chunks, start + (stop - start) * (k + 1) // chunks


@numba.njit(inline="always")
def _left(work):
    return work & _CHUNK < (work >> _END) & _CHUNK


if sys.platform == "win32":  # untested

    @numba.njit
    def _yield_core():
        pass
else:
    _yield_core = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _do(typing, function, arguments, start, stop):
    """Compute a chunk; 1 if it failed."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        function, arguments, start, stop = values
        function = builder.inttoptr(function, _CALL.as_pointer())
        return builder.call(function, [builder.inttoptr(arguments, _POINTER), start, stop])

    return types.int32(*[types.int64] * 4), generate


def _atomic(board: Any, result: Any, operands: int, do: Callable[..., Any]) -> Any:
    """do(builder, pointer to an entry of the board, *operands), in one step for all threads."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, place, *values = given
        array = context.make_array(signature.args[0])(context, builder, array)
        value = do(builder, builder.gep(array.data, [place]), *values)
        return context.get_dummy_value() if result is types.void else value

    return result(board, types.intp, *[types.int64] * operands), generate


@intrinsic
def _load(typing, board, place):
    return _atomic(board, types.int64, 0, lambda b, at: b.load_atomic(at, "acquire", 8))


@intrinsic
def _store(typing, board, place, value):
    return _atomic(board, types.void, 1, lambda b, at, x: b.store_atomic(x, at, "release", 8))


@intrinsic
def _add(typing, board, place, value):
    return _atomic(board, types.int64, 1, lambda b, at, x: b.atomic_rmw("add", at, x, "seq_cst"))


@intrinsic
def _swap(typing, board, place, old, new):
    """Replace old by new; returns whether it was old."""

    def swap(b: Any, at: Any, old: Any, new: Any) -> Any:
        return b.extract_value(b.cmpxchg(at, old, new, "seq_cst", "seq_cst"), 1)

    return _atomic(board, types.boolean, 2, swap)

"""Threads that share the work of one call of a kernel.

    @kernel
    def double(chunk, x):
        for i in range(*share(chunk)):
            x[i] *= 2

    double(whole(len(x), 8), x)

Python calls the kernel once, with a `chunk` that stands for the whole range, here range(len(x)), to
be divided into 8 parts, the chunks. In this call, `share` calls the kernel again for each of the
chunks, with the other arguments unchanged: from its own thread, the leader, and from helper
threads. In those calls, `chunk` stands for one part, and `share` returns where it begins and ends.

Waking a thread takes a tenth of a millisecond, as long as attention over 128 positions, and waiting
for the interpreter's lock may take longer. So a helper that has finished keeps polling for work for
about two milliseconds, while yielding its core to any thread that needs it. It calls the kernel by
its address, without Python. The leader takes chunks from the front of the range and helpers take
them from the back, so that a core usually gets the same part of the data in every operation and
finds it in its cache.

The scheduler may wake a helper on the leader's core and leave it there, since both seem to be
satisfied with half of it, while the other core is idle: a matrix product then takes twice the time.
So a helper that finds itself on the leader's core moves to another one (on Linux).
"""

from __future__ import annotations

import os
import sys
import threading
from queue import SimpleQueue

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.extending import intrinsic

from .. import threads
from .jit import kernel

WORK, FUNCTION, ARGUMENTS, DONE, FAILED, BUSY, AWAKE, LEADER = range(0, 64, 8)
"""Entries of the board, the array through which a leader and its helpers communicate. Each has its
own cache line: the chunks left; the function that computes a chunk; its arguments; the numbers of
finished and of failed chunks; whether there is a leader; the number of helpers awake; the core of
the latest leader."""
_END, _SEATS = 16, 32
"""Bit positions in WORK: the first chunk left is at bit 0, the end of the chunks left at bit 16,
and the number of helpers that may still join at bit 32. They share a number so that they change
together."""
_MOST = 2**16 - 1
"""The largest number of chunks: it must fit into 16 bits of WORK."""
_LOOKS = 10_000
"""How many times in a row a helper looks for work in vain before it goes to sleep."""


def whole(count: int, chunks: int = 1) -> tuple[int, int, int, int, np.ndarray]:
    """Make the argument `chunk` of a kernel that loops over range(count): the range, and the number
    of chunks into which threads divide it (see `share`).

    Returns (0, count, number of chunks, number of helpers, board). Both numbers are 0 if one thread
    is to compute the whole range. Helpers are threads that compute chunks together with the caller;
    all calls share the same `threads.number()` − 1 helpers. The board is the array through which
    the threads communicate. The caller does not wait for helpers that are not awake yet: it begins
    without them.
    """
    chunks = min(chunks, _MOST)
    helpers = min(chunks, threads.number()) - 1 if chunks > 1 else 0
    if not helpers:
        return 0, count, 0, 0, _pool.board
    _pool.wake(helpers)
    return 0, count, chunks, helpers, _pool.board


class _Pool:
    """The helper threads of this process, started when they are first needed."""

    def __init__(self) -> None:
        self.board = np.zeros(64, np.int64)
        self.calls: SimpleQueue[None] = SimpleQueue()
        self.size, self.lock = 0, threading.Lock()

    def wake(self, helpers: int) -> None:
        """Make sure that at least this many helpers are awake, or about to wake up."""
        if self.board[AWAKE] >= helpers:
            return
        with self.lock:
            # While Numba compiles, it sets the filters of warnings, which all threads share: a
            # helper that compiled would set back those of any code that runs beside it.
            _serve.compile(_SERVED)
            while self.size < helpers:
                threading.Thread(target=self._help, name="minimha", daemon=True).start()
                self.size += 1
            for _ in range(helpers - int(self.board[AWAKE]) - self.calls.qsize()):
                self.calls.put(None)

    def _help(self) -> None:
        while True:
            self.calls.get()
            _serve(self.board, _cores())


_pool = _Pool()
if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.__init__)  # type: ignore[misc]


def _cores() -> np.ndarray:
    """The cores on which this thread may run, as the bit mask that the C function
    `sched_setaffinity` takes: an array of uint8 in which bit n % 8 of byte n // 8 is 1 if the
    thread may run on core n. All bits are 0 on systems without this function."""
    bits = np.zeros(8 * 128, np.uint8)
    if hasattr(os, "sched_getaffinity"):
        bits[[core for core in os.sched_getaffinity(0) if core < bits.size]] = 1
    return np.packbits(bits, bitorder="little")


@kernel
def own(x, part):
    """A view of the entries of x, an array with one axis, from part[0] to part[1]; `part` is a
    result of `share`. LLVM vectorises loops over the view better than loops over part of x, since
    its indices start at 0."""
    return x[part[0] : part[1]]


_INTEGER, _POINTER, _CODE = ir.IntType(64), ir.IntType(8).as_pointer(), ir.IntType(32)
_CALL = ir.FunctionType(_CODE, [_POINTER, _INTEGER])
"""The type of a compiled function that computes a chunk. It takes the address of the arguments and
the number of the chunk, and returns 0, or 1 if the chunk failed."""


@intrinsic
def share(typing, chunk):
    """Return (start, stop): the part of its range that a kernel must compute in this call. The
    kernel passes its first argument, `chunk`, which Python made with `whole`; Numba passes
    `typing`.

    `chunk` is (first, end, number of chunks, …). If the number is 0, the kernel must compute all of
    (first, end), which is returned. Otherwise `share` divides this range: it calls the same kernel
    once for each chunk, with the bounds of the chunk as first and end and with 0 as the number, and
    waits until all are computed. Nothing is left to do then, and the part that it returns is empty.

    While the range of one call is divided, calls from other threads compute their whole range
    themselves. Raises MemoryError if a chunk failed, after all others have finished.
    """
    lead = types.int64(types.int64, types.int64, chunk[4], types.int64, types.int64)

    def generate(context, builder, signature, given):
        start, stop, chunks, helpers, board = cgutils.unpack_tuple(builder, given[0])
        this = builder.function
        held = cgutils.alloca_once(builder, ir.LiteralStructType([x.type for x in this.args]))
        begin = cgutils.alloca_once_value(builder, start)
        with builder.if_then(builder.icmp_signed("!=", chunks, chunks.type(0)), likely=False):
            for n, x in enumerate(this.args):
                builder.store(x, cgutils.gep_inbounds(builder, held, 0, n))
            addresses = [builder.ptrtoint(x, _INTEGER) for x in (_for_chunk(this, held.type), held)]
            compiled = _lead.get_compile_result(lead)
            context.active_code_library.add_linking_library(compiled.library)
            function = context.declare_function(builder.module, compiled.fndesc)
            _, outcome = context.call_conv.call_function(
                builder, function, lead.return_type, lead.args, (chunks, helpers, board, *addresses)
            )
            computed, failed = (builder.icmp_signed("==", outcome, outcome.type(n)) for n in (1, 2))
            builder.store(builder.select(computed, stop, start), begin)
            with builder.if_then(failed, likely=False):
                text = "a kernel ran out of memory (or, with bounds checked, left an array)"
                context.call_conv.return_user_exc(builder, MemoryError, (text,))
        return context.make_tuple(builder, signature.return_type, (builder.load(begin), stop))

    return types.UniTuple(types.int64, 2)(chunk), generate


def _for_chunk(kernel, arguments):
    """Generate a function, of type `_CALL`, that takes the address of a kernel's arguments and the
    number of a chunk, calls the kernel for this chunk, and returns 0, or 1 if it failed.

    kernel     the kernel as a function of LLVM: its first two arguments are addresses for its
               result and for an exception; then come start, stop and the number of chunks, the
               first three numbers of the argument `chunk`
    arguments  the type of a pointer to the memory that holds the arguments
    """
    function = ir.Function(kernel.module, _CALL, kernel.module.get_unique_name("chunk"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    pointer = builder.bitcast(function.args[0], arguments)
    values = [
        builder.load(cgutils.gep_inbounds(builder, pointer, 0, n)) for n in range(len(kernel.args))
    ]
    start, stop, chunks = values[2:5]

    def edge(k):
        """Where chunk k of the range begins: start + (stop − start) · k / chunks, rounded down."""
        distance = builder.mul(builder.sub(stop, start), k)
        return builder.add(start, builder.sdiv(distance, chunks))

    k = function.args[1]
    values[:2] = [builder.alloca(x.type.pointee) for x in values[:2]]
    values[2:5] = edge(k), edge(builder.add(k, _INTEGER(1))), _INTEGER(0)
    code = builder.call(kernel, values)
    well = [builder.icmp_signed("==", code, n) for n in (RETCODE_OK, RETCODE_NONE)]
    builder.ret(builder.select(builder.or_(*well), _CODE(0), _CODE(1)))
    return function


_SERVED = types.int64[::1], types.uint8[::1]
"""The types of `_serve`'s arguments."""


@kernel
def _serve(board, cores):
    """The loop of a helper that is awake. It looks for work on the board and computes chunks, and
    returns when it has found no work `_LOOKS` times in a row. `cores` says on which cores the
    helper may run, as in `_cores`."""
    _add(board, AWAKE, 1)
    looked = 0
    while looked < _LOOKS:
        _leave(_load(board, LEADER), cores)
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
def _lead(chunks, helpers, board, function, arguments):
    """Compute all chunks of a call, in the leader's thread, together with any helpers that join.

    chunks, helpers  the number of chunks, and of helpers that may join
    board            the array through which the threads communicate: see WORK
    function         the address of the function that computes a chunk: see `_for_chunk`
    arguments        the address of the kernel's arguments

    Returns 1 on success, 2 if a chunk failed, and 0, without computing anything, if the range of
    another call is being divided.
    """
    if not _swap(board, BUSY, 0, 1):
        return 0
    _store(board, FUNCTION, function), _store(board, ARGUMENTS, arguments)
    _store(board, LEADER, _core())
    _store(board, DONE, 0), _store(board, FAILED, 0)
    _store(board, WORK, helpers << _SEATS | chunks << _END)
    _compute_chunks(board, False)
    while _load(board, DONE) < chunks:
        _yield_core()
    failed = _load(board, FAILED)
    _store(board, BUSY, 0)
    return 2 if failed else 1


@numba.njit
def _compute_chunks(board, from_back):
    """Compute chunks of the call that the board describes, while any are left: if `from_back`, the
    last one first, as helpers do, otherwise the first one first, as the leader does. The addresses
    of the function and its arguments stay on the board until all chunks are finished."""
    work = _load(board, WORK)
    while _left(work):
        k = ((work >> _END) & _MOST) - 1 if from_back else work & _MOST
        if _swap(board, WORK, work, work - (1 << _END) if from_back else work + 1):
            _add(board, FAILED, _do(_load(board, FUNCTION), _load(board, ARGUMENTS), k))
            _add(board, DONE, 1)
        work = _load(board, WORK)


@numba.njit(inline="always")
def _left(work):
    return work & _MOST < (work >> _END) & _MOST


if sys.platform == "win32":  # untested

    @numba.njit
    def _yield_core():
        pass
else:
    _yield_core = types.ExternalFunction("sched_yield", types.int32())

if sys.platform == "linux":
    _core = types.ExternalFunction("sched_getcpu", types.int32())
    _move = types.ExternalFunction(
        "sched_setaffinity", types.int32(types.int32, types.uintp, types.uintp)
    )

    @numba.njit
    def _leave(core, cores):
        """If this thread runs on the core with this number, move it to another one of `cores`, a
        bit mask as in `_cores`. Without another one, the thread stays."""
        if _core() == core:
            cores[core // 8] ^= 1 << core % 8
            _move(0, cores.size, cores.ctypes.data)  # fails if there is no other
            cores[core // 8] ^= 1 << core % 8
            _move(0, cores.size, cores.ctypes.data)
else:

    @numba.njit
    def _core():
        return -1

    @numba.njit
    def _leave(core, cores):
        pass


@intrinsic
def _do(typing, function, arguments, k):
    """Compute chunk k: call the function at the address `function`, a result of `_for_chunk`, with
    the address `arguments` of the kernel's arguments. Returns 0, or 1 if the chunk failed. Numba
    passes `typing`."""

    def generate(context, builder, signature, values):
        function = builder.inttoptr(values[0], _CALL.as_pointer())
        return builder.call(function, [builder.inttoptr(values[1], _POINTER), values[2]])

    return types.int32(*[types.int64] * 3), generate


def _atomic(result, do):
    """Make an intrinsic, a function access(board, entry, *values) for kernels, that reads or
    changes an entry of the board in one step, which no other thread can interrupt.

    result  the type of what access returns
    do      do(builder, pointer to the entry, *values) adds the instructions for this step, with the
            builder of llvmlite
    """

    @intrinsic
    def access(typing, board, entry, *values):
        def generate(context, builder, signature, given):
            array = context.make_array(board)(context, builder, given[0])
            pointer = builder.gep(array.data, [given[1]])
            value = do(builder, pointer, *cgutils.unpack_tuple(builder, given[2]))
            return context.get_dummy_value() if result is types.void else value

        numbers = types.StarArgTuple.from_types([types.int64] * len(values))
        return result(board, types.intp, numbers), generate

    return access


_load = _atomic(types.int64, lambda b, at: b.load_atomic(at, "acquire", 8))
_store = _atomic(types.void, lambda b, at, x: b.store_atomic(x, at, "release", 8))
_add = _atomic(types.int64, lambda b, at, x: b.atomic_rmw("add", at, x, "seq_cst"))
_swap = _atomic(  # (old, new) -> whether the entry was old, and is new now
    types.boolean,
    lambda b, at, old, new: b.extract_value(b.cmpxchg(at, old, new, "seq_cst", "seq_cst"), 1),
)

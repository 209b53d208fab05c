"""A range that threads share, within one call of a kernel.

    @kernel
    def double(part, x):
        if led(part):
            return
        for i in range(part[0], part[1]):
            x[i] *= 2

    double(threads.part(len(x), pieces), x)

The call that Python makes leads: it has itself called for each piece of the range, with the other
arguments as they are, in this thread and in those of helpers.

To wake a thread takes a tenth of a millisecond, as long as attention of 128 positions, and to get
the interpreter's lock may take longer. So a helper that has finished looks for more for a while,
giving way to whoever wants its core, and finds the addresses of a kernel and of its arguments.
The leader takes pieces from the front and helpers from the back: what a core worked on last time,
which is still in its cache, it mostly gets again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.extending import intrinsic, overload

from .. import threads
from ..threads import ARGUMENTS, AWAKE, BUSY, CALL, CALLED_OFF, DONE, FAILED, PIECES, START, STOP
from .jit import kernel, settings

_WORK, _END, _SEATS, _NUMBER = threads.WORK, 16, 32, 40
"""Where in WORK things begin: the first piece that is left at bit 0, where they end, how many
helpers may still join, the number of the call. In one number they change at once."""
_PIECE, _SEAT = threads.MOST_PIECES, threads.MOST_HELPERS


def led(part: Any) -> bool:
    """Whether the part of its range that a kernel is called for was shared, and is done.

    part, (start, stop, how it is shared, the team), is the kernel's first argument. What the kernel
    returns for a piece is dropped. While one call is under way, those of other threads do all their
    pieces. False for a piece, and where nothing is compiled. Raises MemoryError if a piece failed,
    when the others are done.
    """
    return False


@overload(led, inline="always")
def _compiled(part):
    return lambda part: _led(part)  # noqa: PLW0108


@kernel
def own(x: Any, part: Any) -> Any:
    """The entries or rows of x that are a part's: places known not to be negative, which may be
    computed as vectors."""
    return x[part[0] : part[1]]


_INTEGER, _POINTER = ir.IntType(64), ir.IntType(8).as_pointer()
_CODE = ir.IntType(32)
_CALL = ir.FunctionType(_CODE, [_POINTER, _INTEGER, _INTEGER])
"""A function that does a piece: of the arguments of a kernel, start and stop; not 0 if it failed"""


@intrinsic
def _led(typing, part):
    lead = types.boolean(part[3], *[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        start, stop, share, team = cgutils.unpack_tuple(builder, given[0])
        this = builder.function
        held = cgutils.alloca_once(builder, ir.LiteralStructType([x.type for x in this.args]))
        wanted = builder.icmp_signed("!=", share, share.type(0))
        with builder.if_then(wanted, likely=False):
            for n, x in enumerate(this.args):
                builder.store(x, cgutils.gep_inbounds(builder, held, 0, n))
            addresses = [builder.ptrtoint(x, _INTEGER) for x in (_piece_of(this, held.type), held)]
            made = _lead.get_compile_result(lead)
            context.active_code_library.add_linking_library(made.library)
            function = context.declare_function(builder.module, made.fndesc)
            values = team, start, stop, share, *addresses
            _, well = context.call_conv.call_function(
                builder, function, lead.return_type, lead.args, values
            )
            with builder.if_then(builder.not_(well), likely=False):
                text = "a kernel had no memory (or, with bounds checked, left an array)"
                context.call_conv.return_user_exc(builder, MemoryError, (text,))
        return wanted

    return types.boolean(part), generate


def _piece_of(kernel: Any, arguments: Any) -> Any:
    """The _CALL that calls a kernel, whose arguments begin with where to put what it returns and
    the exception, start, stop and share."""
    function = ir.Function(kernel.module, _CALL, kernel.module.get_unique_name("piece"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block())
    pointer, start, stop = function.args
    pointer = builder.bitcast(pointer, arguments)
    given = [
        builder.load(cgutils.gep_inbounds(builder, pointer, 0, n)) for n in range(len(kernel.args))
    ]
    given[:2] = [builder.alloca(x.type.pointee) for x in given[:2]]
    given[2:5] = start, stop, _INTEGER(0)
    code = builder.call(kernel, given)
    well = [builder.icmp_signed("==", code, n) for n in (RETCODE_OK, RETCODE_NONE)]
    builder.ret(builder.select(builder.or_(*well), _CODE(0), _CODE(1)))
    return function


def _is_compiled() -> bool:
    """Of what calls it."""
    return False


@overload(_is_compiled, inline="always")
def _compiled_is() -> Any:
    return lambda: True


@kernel
def attend(team: Any, looks: int, called_off: int) -> None:
    """The life of a helper while it is awake: until it looked so often, and there was nothing.

    In the second half it counts as asleep: who counts on it now may come when it is gone.
    """
    if not _is_compiled():
        return
    _add(team, AWAKE, 1)
    looked, half = 0, (looks + 1) // 2
    while looked < looks:
        looked += 1
        if looked == half:
            _add(team, AWAKE, -1)
        work = _load(team, _WORK)
        if not _left(work) or not (work >> _SEATS) & _SEAT:
            _give_way()
        elif _load(team, CALLED_OFF) != called_off:
            break
        elif _swap(team, _WORK, work, work - (1 << _SEATS)):
            if looked >= half:
                _add(team, AWAKE, 1)
            looked = 0
            _take(team, work >> _NUMBER, True)
    if looked < half:
        _add(team, AWAKE, -1)


@numba.njit(**settings({}))
def _lead(team, start, stop, share, call, arguments):
    """The leader's part. Returns whether no piece failed."""
    pieces, helpers, failed = share >> 8, share & _SEAT, 0
    if not _swap(team, BUSY, 0, 1):
        for k in range(pieces):
            failed |= _do(call, arguments, *_range(start, stop, k, pieces))
        return failed == 0
    _store(team, CALL, call), _store(team, ARGUMENTS, arguments)
    _store(team, START, start), _store(team, STOP, stop), _store(team, PIECES, pieces)
    _store(team, DONE, 0), _store(team, FAILED, 0)
    number = ((_load(team, _WORK) >> _NUMBER) + 1) & (2**20 - 1)
    _store(team, _WORK, number << _NUMBER | helpers << _SEATS | pieces << _END)
    _take(team, number, False)
    while _load(team, DONE) < pieces:
        _give_way()
    failed = _load(team, FAILED)
    _store(team, BUSY, 0)
    return failed == 0


@numba.njit
def _range(start, stop, k, pieces):
    return start + (stop - start) * k // pieces, start + (stop - start) * (k + 1) // pieces


@numba.njit(**settings({}))
def _take(team, number, from_back):
    """Do pieces of this call while there are any. A piece that was taken keeps the call alive."""
    while True:
        work = _load(team, _WORK)
        if work >> _NUMBER != number or not _left(work):
            return
        k = ((work >> _END) & _PIECE) - 1 if from_back else work & _PIECE
        if _swap(team, _WORK, work, work - (1 << _END) if from_back else work + 1):
            whole = _load(team, START), _load(team, STOP)
            start, stop = _range(*whole, k, _load(team, PIECES))
            if _do(_load(team, CALL), _load(team, ARGUMENTS), start, stop):
                _store(team, FAILED, 1)
            _add(team, DONE, 1)


@numba.njit(inline="always")
def _left(work):
    return work & _PIECE < (work >> _END) & _PIECE


if sys.platform == "win32":  # untried

    @numba.njit
    def _give_way():
        pass
else:
    _give_way = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _do(typing, call, arguments, start, stop):
    """Do a piece; not 0 if it failed."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        call, arguments, start, stop = values
        function = builder.inttoptr(call, _CALL.as_pointer())
        return builder.call(function, [builder.inttoptr(arguments, _POINTER), start, stop])

    return types.int32(*[types.int64] * 4), generate


def _entry(team: Any, returned: Any, operands: int, do: Callable[..., Any]) -> Any:
    """do(builder, pointer to an entry of a team, *operands), at once as all others see it."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        array, place, *values = given
        array = context.make_array(signature.args[0])(context, builder, array)
        made = do(builder, builder.gep(array.data, [place]), *values)
        return context.get_dummy_value() if returned is types.void else made

    return returned(team, types.intp, *[types.int64] * operands), generate


@intrinsic
def _load(typing, team, place):
    return _entry(team, types.int64, 0, lambda b, at: b.load_atomic(at, "acquire", 8))


@intrinsic
def _store(typing, team, place, value):
    return _entry(team, types.void, 1, lambda b, at, x: b.store_atomic(x, at, "release", 8))


@intrinsic
def _add(typing, team, place, value):
    return _entry(team, types.int64, 1, lambda b, at, x: b.atomic_rmw("add", at, x, "seq_cst"))


@intrinsic
def _swap(typing, team, place, old, new):
    """Set it to new if it is old; returns whether it was."""

    def swap(b: Any, at: Any, old: Any, new: Any) -> Any:
        return b.extract_value(b.cmpxchg(at, old, new, "seq_cst", "seq_cst"), 1)

    return _entry(team, types.boolean, 2, swap)

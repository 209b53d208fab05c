"""Attention by compiled kernels, from one fused pass over the scores to tiles on a GPU.

If a kernel does not support the arguments, or a result of a CPU's kernel is not finite,
`attention.reference` computes instead. It selects the visible pairs, while these kernels multiply
hidden pairs by 0, which does not remove a NaN. Kernels for GPUs remove it themselves, since the
host would have to wait for the GPU to look at their results.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from minimha_autograd import Pullback, backend, unbroadcast
from minimha_autograd.backend import Array, namespace
from minimha_autograd.operation import Wanted

from ...attention import Arguments
from ...attention.arguments import Gradients
from ...attention.dispatch import computed
from ...attention.reference import attention
from ...functional.implementations import (
    Candidate,
    batch_invariance,
    library_of,
    refuse,
    register,
)
from .. import INSTEAD, unavailable, warn_once
from ..gpu import fused as gpu_fused
from ..gpu import tiled as gpu_tiled
from . import fused, tiled
from .layout import SILENT, KernelArguments

_FLOATS = np.dtype("float32"), np.dtype("float64")
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


class Kernels(NamedTuple):
    """The functions that run one implementation of attention for the arrays of one library, such as
    NumPy. laid_out, forward and backward are called only for arguments for which `obstacle` returns
    None."""

    obstacle: Callable[[Arguments], str | None]  # the reason why kernels do not support these
    laid_out: Callable[[Arguments], Any]  # the arguments as the next two functions take them
    forward: Callable[[Any], Any]  # the output and what the backward needs
    backward: Callable[..., Any]  # the gradients of the seven inputs
    native: bool = False  # whether it takes 16-bit floats and a `Draw` of dropout as they are


def _on_cpu(module: ModuleType, *, in_registers: bool = False) -> Kernels:
    """The functions of a module that computes attention of NumPy arrays with compiled kernels.

    in_registers  whether the module's matrix products keep their sums in the CPU's registers (see
                  `kernels.cpu.microkernel`) instead of calling BLAS
    """

    def obstacle(x: Arguments) -> str | None:
        return unavailable() or (None if in_registers else module.obstacle(x))

    def laid_out(x: Arguments) -> KernelArguments:
        return KernelArguments.of(x, in_registers)

    return Kernels(obstacle, laid_out, module.forward, module.backward)


def _on_gpu(module: ModuleType, *, native: bool = False) -> Kernels:
    """The functions of a module that computes attention of CuPy arrays, or of NumPy arrays by
    `numpy_tile`, which runs kernels for GPUs without a GPU.

    native  whether the kernels take 16-bit floats and a `Draw` of dropout as they are
    """
    forward, backward = SILENT(module.forward), SILENT(module.backward)
    return Kernels(module.obstacle, module.laid_out, forward, backward, native)


def _obstacle(  # noqa: PLR0911  one reason each
    x: Arguments, libraries: dict[str, Kernels]
) -> str | None:
    """The reason why the kernels of one implementation cannot compute attention with the arguments
    x, or None if they can.

    libraries  its kernels for each library: {"numpy": …, "cupy": …}, or only one of them
    """
    arrays = [a for a in (x.query, x.key, x.value, x.bias, x.sink) if a is not None]
    kernels = libraries.get(library_of(x.query))
    if kernels is None or len({*map(type, arrays)}) > 1:
        return f"the arrays are not {' or '.join(_TITLES[name] for name in libraries)} arrays"
    if x.query.dtype not in _FLOATS and not backend.is_half(x.query):
        return f"kernels do not support {x.query.dtype}"
    if any(backend.is_array(a) or isinstance(a, complex) for a in (x.scale, x.softcap)):
        return "scale or softcap is an array, or complex"
    if x.softcap is not None and not x.softcap > _SMALLEST:
        return "softcap is too close to 0, which kernels take for no softcap"
    if len({a.dtype for a in arrays}) > 1:  # complex
        return "the arrays have different dtypes"
    if not (math.prod(x.query.shape) and math.prod(x.value.shape)):
        return "an array is empty"
    return kernels.obstacle(x)


_NOT_FINITE = "a result is not finite, so the reference would compute the whole batch"
_TITLES = {"numpy": "NumPy", "cupy": "CuPy"}
_failed: dict[tuple[str, str], str] = {}
"""For each pair of an implementation and a library that failed on a GPU, the reason."""
_log = logging.getLogger("minimha")


def forget_failures() -> None:
    """Forget which implementations have failed on a GPU, so that they are tried again."""
    _failed.clear()


def why_it_failed(error: Exception) -> str:
    """A description of the error of a kernel, in one line. It also says whether the kernel could
    not be compiled or failed when it ran."""
    ancestors = {kind.__name__ for kind in type(error).__mro__}
    compiling = ancestors & {"TileError", "CompileException"}  # cuTile's and CuPy's
    what = "it could not be compiled" if compiling else "it failed"
    return f"{what}: {type(error).__name__}: {' '.join(str(error).split())}"


@functools.cache
def _slow_registers() -> str | None:
    """The reason why matrix products that keep their sums in registers are not fast on this CPU, or
    None if they are."""
    from ..cpu import registers

    return registers.no_vectors()


def _reference(
    x: Arguments, wanted: Wanted
) -> tuple[tuple[Array, Array | None, Array | None], Pullback]:
    """The value and the pullback of `attention.reference` for the arguments x; `wanted` says which
    gradients are wanted. The value is (output, weights, lse), with None for an lse that x does not
    ask for. It computes with float32 if the arguments are 16-bit floats."""
    return computed(Candidate(attention), x, wanted)


def _register(name: str, doc: str, **libraries: Kernels) -> None:
    """Register an implementation of attention.

    name       what users choose it by, such as "tiled"
    doc        the beginning of its docstring
    libraries  its kernels for each library: numpy=…, cupy=…, or only one of them
    """

    def obstacle(x: Arguments, auto: bool) -> str | None:
        why = _obstacle(x, libraries) or _failed.get((name, library_of(x.query)))
        if why is not None and not auto and why == unavailable():
            warn_once(INSTEAD, why)
        return _slow_registers() if why is None and auto and name == "microkernel" else why

    def attempt(library: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """The result of call(*arguments), which runs kernels on the arrays of a library. If they
        fail on a GPU, it returns None and stores the reason in `_failed`, so that this
        implementation is not tried there again."""
        try:
            return call(*arguments)
        except MemoryError:
            raise
        except Exception as error:
            if library == "numpy":
                raise
            why = why_it_failed(error)
            _failed[name, library] = why
            _log.warning(
                "minimha: attention by %r: %s; the next implementation takes over. "
                "`minimha gpu-report` shows what this machine can run", name, why,
            )  # fmt: skip
            return None

    def native(x: Array) -> bool:
        kernels = libraries.get(library_of(x))
        return kernels is not None and kernels.native

    def by_kernels(
        x: Arguments, wanted: Wanted
    ) -> tuple[tuple[Array, Array | None, Array | None], Pullback]:
        library = library_of(x.query)
        kernels = libraries[library]
        invariant = batch_invariance.get()
        laid_out = kernels.laid_out(x)
        result = attempt(library, kernels.forward, laid_out)
        if result is None:
            if invariant:
                refuse(_NOT_FINITE)
            return _reference(x, wanted)
        out, saved = result

        weights: Array | None = None
        through_weights: Any = None
        if x.return_weights:
            (_, weights, _), through_weights = _reference(x, wanted)

        def pullback(
            dout: Array | None, dweights: Array | None, dlse: Array | None
        ) -> tuple[Array | None, ...]:
            gradients: Any = None
            if dout is None and dlse is not None:
                dout = namespace(out).zeros_like(out)
            if dout is not None and backend.kind(dout) == backend.kind(out):
                gradients = attempt(
                    library, kernels.backward, laid_out, out, saved, dout, dlse, wanted
                )
            if gradients is None and dout is not None:
                if invariant:
                    refuse(_NOT_FINITE, "the gradients of attention")
                gradients = _reference(x, wanted)[1](dout, None, dlse)
            if dweights is None:
                return gradients
            others = through_weights(None, dweights, None)
            if gradients is None:
                return others
            return Gradients(*map(_sum, gradients, others, x.inputs))

        lse = _log_sums(saved, x) if x.return_lse else None
        return (out, weights, lse), pullback

    by_kernels.__name__ = by_kernels.__qualname__ = name
    by_kernels.__doc__ = f"""{doc}

    Arguments, values and pullback are those of `attention`, which also computes the weights if they
    are asked for.
    """
    register("attention", name, obstacle=obstacle, native=native)(by_kernels)


def _log_sums(lse: Array, x: Arguments) -> Array:
    """The log-sum-exp of every query's scores, (…, H, T), from the array `lse` (B, H, T) that a
    kernel returns for the arguments x. For a query that sees neither a key nor a sink, the kernel
    returns +∞, which becomes −∞ here."""
    xp = namespace(lse)
    lse = xp.where(lse == math.inf, -lse, lse)
    return xp.reshape(xp.astype(lse, x.query.dtype), x.shape[:-1])


def _sum(a: Array | None, b: Array | None, x: Any) -> Array | None:
    """The sum of a and b, two parts of the gradient of x. If x was broadcast, a part may have the
    larger shape; it is then summed over the axes along which x was repeated. If one part is None,
    the other is returned as it is."""
    if a is None or b is None:
        return b if a is None else a
    return unbroadcast(a, x.shape) + unbroadcast(b, x.shape)


_register(
    "fused",
    "`attention` with scale, bias, mask and softmax in one compiled function.",
    numpy=_on_cpu(fused),
    cupy=_on_gpu(gpu_fused),
)
_register(
    "tiled",
    "`attention` in tiles, by `kernels.cpu.attention_tiles` and BLAS or by `kernels.gpu.tiles`.",
    numpy=_on_cpu(tiled),
    cupy=_on_gpu(gpu_tiled, native=True),
)
_register(
    "microkernel",
    "`attention` in tiles that multiply in the registers: see `kernels.cpu.microkernel`.",
    numpy=_on_cpu(tiled, in_registers=True),
)
_register(
    "simulated",
    "`attention` by the kernels for GPUs, on NumPy: see `kernels.gpu.numpy_tile`.",
    numpy=_on_gpu(gpu_tiled, native=True),
)

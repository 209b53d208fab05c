"""The engine of minimha: arrays of any library, Tensors, the tape, and gradient checks."""

from . import backend, ops
from .gradcheck import GradcheckError, Report, gradcheck
from .operation import Operation, Pullback, operation, registry, unbroadcast
from .tensor import Tensor, array_of, no_grad

__all__ = [
    "GradcheckError",
    "Operation",
    "Pullback",
    "Report",
    "Tensor",
    "array_of",
    "backend",
    "gradcheck",
    "no_grad",
    "operation",
    "ops",
    "registry",
    "unbroadcast",
]

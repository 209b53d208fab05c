"""The engine of minimha: arrays of any library, Tensors, the tape, and gradient checks."""

from . import backend, half, ops
from .backend import unbroadcast
from .gradcheck import GradcheckError, gradcheck
from .half import widened
from .modes import detect_anomaly, no_grad
from .operation import Operation, operation, registry
from .tape import Pullback, array_of
from .tensor import Tensor

__all__ = [
    "GradcheckError",
    "Operation",
    "Pullback",
    "Tensor",
    "array_of",
    "backend",
    "detect_anomaly",
    "gradcheck",
    "half",
    "no_grad",
    "operation",
    "ops",
    "registry",
    "unbroadcast",
    "widened",
]

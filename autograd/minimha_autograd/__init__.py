"""The engine of minimha: arrays of any library, Tensors, the tape, and gradient checks."""

from . import backend, ops
from .gradcheck import GradcheckError, gradcheck
from .half import in_float32, widened
from .modes import detect_anomaly, no_grad
from .operation import Operation, operation, registry
from .pullback import Pullback, unbroadcast
from .tensor import Tensor, array_of

__all__ = [
    "GradcheckError",
    "Operation",
    "Pullback",
    "Tensor",
    "array_of",
    "backend",
    "detect_anomaly",
    "gradcheck",
    "in_float32",
    "no_grad",
    "operation",
    "ops",
    "registry",
    "unbroadcast",
    "widened",
]

"""What attention costs: parameters, floating-point operations, bytes moved and kept, and time.

    print(mh.cost.multi_head("fused", M=512, H=8, T=128))
    mh.cost.compare(M=512, H=8, T=128)  # all forms of the projections

A computation is a list of steps, one for each array operation; a step has so many floating-point
operations and moves so many bytes, and the rest is sums over the list. Nearly all floating-point
operations are in products of matrices (rows, inner) (inner, columns), and each of these brings two
more in the backward, da = dy bᵀ and db = aᵀ dy: so the backward costs twice the forward.

Exact: parameters, the number of products and the flops of each, what is saved, and the bytes of
`projections`. The bytes of `attention` are right to half a percent, because checks with one number
a row are counted roughly; those of `multi_head` to eight percent where T is near S, because copies
that bring together heads which lie apart in memory are not counted. Time is an estimate, from two
curves and a number that `calibrate` measures.

All of this is for attention without mask, bias of the scores, sink, softcap and dropout, on NumPy
arrays, with the gradient of the input wanted.
"""

from .attention import attention, multi_head
from .comparison import Comparison, compare
from .machine import Machine, calibrate
from .projections import projections
from .setting import Setting
from .steps import Cost, Step

__all__ = [
    "Comparison",
    "Cost",
    "Machine",
    "Setting",
    "Step",
    "attention",
    "calibrate",
    "compare",
    "multi_head",
    "projections",
]

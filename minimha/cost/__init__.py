"""What attention costs: parameters, floating-point operations, bytes moved and kept, and time.

    print(mh.cost.multi_head("fused", M=512, H=8, T=128))
    mh.cost.compare(M=512, H=8, T=128)  # all forms of the projections

A computation is a list of primitives, one for each array operation. Each has a number of
floating-point operations (flops) and of bytes moved, and a cost sums both over the list. Only the
flops of matrix products are counted. The backward pass of a product y = a b takes two more,
da = dy bᵀ and db = aᵀ dy: so the backward pass takes twice the flops of the forward pass.

For attention by the reference implementation on NumPy arrays, without mask, bias of the scores,
sink, softcap and dropout, and with the gradient of the input, parameters, flops and saved bytes are
exact. The bytes moved are approximate, and time is an estimate: docs/cost.md says how accurate.

    mh.cost.communication("ring", 4, T=16_384, H=8, D=64, causal=True)  # what each rank sends

`communication` and `training_step` count exactly the bytes and messages that ranks send when they
share a model.

    mh.cost.gpt_step(65, layers=6, M=384, H=6, B=16, T=256)  # a step of training, on one machine
    mh.cost.decoding(S=4096, M=512, H=8, G=2, C=128, Dr=32)  # a step of decoding, with a cache
    mh.cost.speculation(acceptance=0.8, ahead=4, ratio=0.05)  # the speed-up of speculative decoding
"""

from .attention import attention, multi_head
from .communication import Sent, communication, training_step, update
from .comparison import Comparison, compare
from .decoding import Decoding, DecodingStep, decoding
from .gpt import Step, gpt_step
from .machine import Machine, calibrate
from .primitives import Cost, Primitive
from .projections import projections
from .setting import Setting
from .speculation import speculation

__all__ = [
    "Comparison", "Cost", "Decoding", "DecodingStep", "Machine", "Primitive", "Sent", "Setting",
    "Step", "attention", "calibrate", "communication", "compare", "decoding", "gpt_step",
    "multi_head", "projections", "speculation", "training_step", "update",
]  # fmt: skip

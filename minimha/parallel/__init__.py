"""Several ranks run one program, each on its own part of the data. They exchange arrays by
collectives, which have pullbacks, and share the training of a model in one of four ways."""

from .collectives import parts
from .communicator import CommunicationError, Communicator
from .data import Buckets, DataParallel
from .heads import HeadParallel, share_heads
from .mpi import world
from .places import part, positions
from .ring import Ring, ring_attention
from .route import pieces
from .threads import across, run
from .ulysses import Ulysses, ulysses_attention
from .ways import Way

WAYS: dict[str, type[Way]] = {
    "data": DataParallel, "heads": HeadParallel, "ulysses": Ulysses, "ring": Ring,
}  # fmt: skip
"""The ways to divide the training of a GPT among ranks, by name."""

__all__ = [
    "WAYS", "Buckets", "CommunicationError", "Communicator", "Way", "across", "part", "parts",
    "pieces", "positions", "ring_attention", "run", "share_heads", "ulysses_attention", "world",
]  # fmt: skip

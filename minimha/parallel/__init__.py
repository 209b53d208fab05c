"""Many ranks, which run one program on parts of the data: collectives with pullbacks, and ways to
share the work of a model."""

from .collectives import parts
from .communicator import CommunicationError, Communicator
from .threads import across, run

__all__ = ["CommunicationError", "Communicator", "across", "parts", "run"]

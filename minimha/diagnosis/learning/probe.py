"""A model with one batch, and what the checks need to look at it.

The checks work on copies of the parameters: during a check, each parameter's `Tensor` is connected
to a new node of the tape, so that the weights, gradients, hooks and graphs of the model stay as
they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from minimha_autograd import Tensor, backend, no_grad, widened
from minimha_autograd.gradcheck.on_tape import replaced
from minimha_autograd.modes import watch
from minimha_autograd.tape import Node

from ...attention import Arguments, implementation
from ...attention.reference import attention
from ...functional import cross_entropy

Arrays = dict[str, np.ndarray]


class Intermediate(NamedTuple):
    """A value that an operation computed: the operation's name, the value, and its node on the
    tape."""

    operation: str
    value: np.ndarray
    node: Node | None

    def is_attention(self, t: int) -> bool:
        """Whether the value consists of attention weights for a sequence of length t: the shape is
        (…, t, t), no weight is negative, and the rows sum to 1.

        The weights may come from a student's own softmax. Those of cross-attention, (…, T, S), are
        found only if minimha computed them.
        """
        known = self.operation == "attention" and self.value.ndim > 2
        return (known or self.is_square(t)) and self.value.shape[-1] > 1 and self.sums_to_one()

    def is_square(self, t: int) -> bool:
        """Whether the value is an array of floats of shape (…, t, t) with three axes or more."""
        y = self.value
        return y.ndim > 2 and y.shape[-2:] == (t, t) and backend.is_floating(y)

    def sums_to_one(self, axis: int = -1) -> bool:
        """Whether the entries are weights that sum to 1 along this axis. Rows without a visible key
        sum to 0, which is accepted."""
        if self.value.min(initial=0.0) < 0:
            return False
        sums = self.value.sum(axis=axis, dtype=np.float64)
        return bool(((abs(sums - 1) < 1e-3) | (sums == 0)).all() and sums.any())


class Probe:
    """A model, a batch, and what the checks have learned so far.

    model         maps inputs to logits
    parameters    the model's parameters by name
    inputs        (B, T) integers, or (B, T, …) numbers
    targets       (B, T), or (B,) for a classifier; integers
    real          which positions of the inputs are not padding, (B, T)
    predicts_next whether each target is the next input: targets[t] = inputs[t + 1]
    figures       what each check measured, for the report
    padding       the token that fills up short sequences, or None
    lr            the learning rate with which the user trains the model
    rng           the random generator, made from `seed`, that all checks draw from
    """

    def __init__(
        self, model: Any, inputs: Any, targets: Any, padding: int | None, lr: float, seed: int
    ) -> None:
        self.model = model
        named = model.named_parameters()  # an activation kept as an attribute is no parameter
        self.parameters = {n: p for n, p in named if p._edge and p._edge[0].signature is None}
        if not self.parameters:
            raise ValueError("the model has no parameters: named_parameters() yields none")
        self.inputs: np.ndarray = backend.to_numpy(backend.asarray(inputs))
        self.targets: np.ndarray = backend.to_numpy(backend.asarray(targets))
        shape = self.inputs.shape
        if len(shape) < 2 or shape[1] < 2 or self.targets.shape not in (shape[:1], shape[:2]):
            raise ValueError(
                f"inputs has shape {shape} and targets {self.targets.shape}: they must be (B, T) "
                "and (B, T), or (B, T) and (B,) for a classifier, with T at least 2"
            )
        self.padding, self.lr, self.rng = padding, lr, np.random.default_rng(seed)
        self.real = np.ones(shape[:2], bool) if padding is None else self.inputs != padding
        self.figures: dict[str, str] = {}
        self.predicts_next = False

    @property
    def per_position(self) -> bool:
        """Whether there is a target for each position."""
        return self.targets.ndim == 2

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the model: that of its first parameter."""
        return backend.to_numpy(next(iter(self.parameters.values())).data).dtype

    def call(self, inputs: np.ndarray) -> Any:
        """Call the model with these inputs, and return its logits as a Tensor: the first value, if
        it returns several. Raises ValueError unless these are a Tensor with one axis more than the
        targets."""
        first = next(iter(self.parameters.values())).data
        logits = self.model(backend.like(inputs, first))
        logits = logits[0] if isinstance(logits, tuple) else logits
        shape = self.targets.shape
        if not isinstance(logits, Tensor) or logits.ndim != len(shape) + 1:
            what = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            form = "(B, T, V)" if self.per_position else "(B, C)"
            raise ValueError(f"the model must return a Tensor of logits {form}, not {what}")
        return logits

    def logits(self, inputs: np.ndarray | None = None) -> np.ndarray:
        """Return the model's logits for some inputs, by default the batch, as a NumPy array and
        without a gradient."""
        with no_grad():
            return backend.to_numpy(self.call(self.inputs if inputs is None else inputs).data)

    def loss(self, inputs: np.ndarray | None = None, targets: np.ndarray | None = None) -> Any:
        """Return the mean cross entropy of the model's logits for some inputs with the targets, by
        default those of the batch, as a Tensor. Positions with padding do not count."""
        inputs = self.inputs if inputs is None else inputs
        targets = self.targets if targets is None else targets
        logits = self.call(inputs)
        if self.padding is not None and self.per_position:
            places = np.nonzero(self.counted(inputs, targets))
            logits = logits[tuple(backend.like(k, logits.data) for k in places)]
            targets = targets[places]
        return cross_entropy(logits, backend.like(targets, logits.data))

    def counted(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return a boolean array: True for each target that counts in the loss, because neither it
        nor its input is padding."""
        if self.padding is None or targets.ndim == 1:
            return np.ones(targets.shape, bool)
        return (inputs != self.padding) & (targets != self.padding)

    def gradients(self, *batch: np.ndarray) -> dict[str, np.ndarray | None]:
        """Return the gradient of the loss for each parameter by name, or None for one that gets no
        gradient. `batch` may be inputs and targets to use in place of the probe's own."""
        for p in self.parameters.values():
            p.grad = None
        loss = self.loss(*batch)
        if loss.requires_grad:
            loss.backward()
        return {
            name: None if p.grad is None else widened(backend.to_numpy(p.grad))
            for name, p in self.parameters.items()
        }

    @property
    def leaves(self) -> dict[Node | None, str]:
        """A dictionary from each parameter's node on the tape to the parameter's name."""
        return {_node(p): name for name, p in self.parameters.items()}

    @property
    def few(self) -> tuple[np.ndarray, np.ndarray]:
        """Two sequences and their targets, for checks that call the model many times."""
        return self.inputs[:2], self.targets[:2]

    def weights(self) -> Arrays:
        """Return the parameters as NumPy arrays by name. 16-bit ones become float32, so that their
        squares are finite."""
        return {name: widened(backend.to_numpy(p.data)) for name, p in self.parameters.items()}

    @contextmanager
    def holding(self, arrays: Mapping[str, np.ndarray]) -> Iterator[None]:
        """A context manager: inside the block, the parameters contain these arrays and collect
        gradients of their own; afterwards they are as before."""
        own = [self.parameters[name] for name in arrays]
        leaves = zip(own, arrays.values(), strict=True)
        copies = [Tensor(backend.like(x, p.data), requires_grad=True) for p, x in leaves]
        with replaced(own, copies):
            yield

    def copies(self) -> Any:
        """A context manager: inside the block, the parameters contain copies of their arrays, so
        that a check can train the model and leave its weights as they are. 16-bit floats become
        float32, since rounding to 16 bits hides small changes."""
        weights = self.weights().items()
        return self.holding({n: x.astype(np.result_type(x, np.float32)) for n, x in weights})

    def moved(self, scale: float = 0.02) -> Arrays:
        """Return the parameters by name, with random numbers added to all entries. Weights that
        start at zero, such as the last ones of a residual branch, then no longer keep an input from
        influencing the logits, while a mask still hides what it hid. The numbers have the
        standard deviation `scale` + 0.1 · (root mean square of the parameter)."""
        moved = {}
        for name, x in self.weights().items():
            size = scale + 0.1 * float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))
            moved[name] = (x + size * self.rng.standard_normal(x.shape)).astype(x.dtype)
        return moved

    def other_tokens(self, inputs: np.ndarray) -> np.ndarray:
        """Return inputs of the same shape that differ from these at every position: other tokens
        of the batch (0 and 1 if it has only one) or, for floats, larger numbers."""
        if inputs.dtype.kind == "f":
            return (inputs + 1 + self.rng.random(inputs.shape)).astype(inputs.dtype)
        known = np.unique(self.inputs[self.real])
        if len(known) == 1:
            return np.where(inputs == 0, 1, 0).astype(inputs.dtype)
        places = np.searchsorted(known, inputs).clip(max=len(known) - 1)
        shifts = self.rng.integers(1, len(known), inputs.shape)
        return known[(places + shifts) % len(known)].astype(inputs.dtype)

    def trace(self, inputs: np.ndarray) -> list[Intermediate]:
        """Call the model with these inputs, and return all values computed on the way to the
        logits, attention weights among them; the logits come last."""
        steps: list[Intermediate] = []
        weights: list[Any] = []

        def attend(x: Arguments, wanted: Any) -> Any:
            values, pullback = attention(x, wanted)
            weights.append(values[1])
            return values, pullback

        def see(name: str, x: Tensor) -> Tensor:
            while weights:  # those of the operation that made x: they share its node
                steps.append(Intermediate("attention", backend.to_numpy(weights.pop()), _node(x)))
            steps.append(Intermediate(name, backend.to_numpy(x.data), _node(x)))
            return x

        with watch(see), implementation(attend):
            logits = self.call(inputs)
        return [*steps, Intermediate("logits", backend.to_numpy(logits.data), _node(logits))]

    def attention(self, inputs: np.ndarray) -> list[Intermediate]:
        """Return all attention weights that the model computes on the way from these inputs to the
        logits, the first ones first: usually one `Intermediate` for each attention layer. A layer
        has several if further operations after its softmax also return such weights."""
        return [step for step in self.trace(inputs) if step.is_attention(inputs.shape[1])]

    def place(self, node: Node | None) -> str:
        """Return the path of the module that computed a node, such as "blocks.0.mlp". It is the
        module that has the nearest parameter in the graph, searched backward from the node. Returns
        "the model" if no parameter is found."""
        names = self.leaves
        layer, found = [node], set[Any]()
        while layer := [n for n in layer if n is not None and n not in found]:
            for n in layer:
                if n in names:
                    return names[n].rpartition(".")[0] or names[n]
            found.update(layer)
            layer = [p for n in layer for p in parents(n)]
        return "the model"


def parents(node: Node) -> list[Node]:
    """Return the nodes from which this node was computed."""
    return [edge[0] for edge in node.edges if edge is not None]


def _node(x: Tensor) -> Node | None:
    return None if x._edge is None else x._edge[0]

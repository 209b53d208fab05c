# minimha homework: attention
# earns 0, slowly
# The gradients of the intermediates come from complex steps, too.

import numpy as np


def complex_step(loss, x):
    dx = np.empty(x.shape)
    for k in np.ndindex(x.shape):
        z = x.astype(complex)
        z[k] += 1e-20j
        dx[k] = loss(z).imag / 1e-20
    return dx


def softmax_rows(x):
    e = np.exp(x - x.real.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(query, key, value, *, tap=lambda name, x: x):
    inputs, steps = [query, key, value], {}

    def pullback(dout):
        def loss(*arguments, tap=lambda name, x: x):
            return np.sum(dout * attention(*arguments, tap=tap)[0])

        def with_step(at):
            return complex_step(
                lambda z: loss(*inputs, tap=lambda name, x: z if name == at else x), steps[at]
            )

        inner = {name: with_step(name) for name in list(steps)}
        found = [
            complex_step(lambda z, k=k: loss(*inputs[:k], z, *inputs[k + 1 :]), x).astype(x.dtype)
            for k, x in enumerate(inputs)
        ]
        return *found, inner

    steps["scores"] = tap("scores", query @ key.mT / query.shape[-1] ** 0.5)
    steps["weights"] = tap("weights", softmax_rows(steps["scores"]))
    return steps["weights"] @ value, pullback

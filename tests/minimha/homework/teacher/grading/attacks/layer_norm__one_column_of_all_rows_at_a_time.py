# minimha homework: layer_norm
# earns 3, slowly
# A limit that docs/sandbox.md states: rows do not depend on each other, so a
# step in one column of all rows gives that column of dx.

import numpy as np


def forward(x, weight, bias, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + eps) * weight + bias


def layer_norm(x, weight, bias, eps=1e-5):
    def pullback(dy):
        dx, dweight, dbias = np.empty(x.shape), np.empty(weight.shape), np.empty(bias.shape)
        for k, step in enumerate(1e-20j * np.eye(x.shape[-1])):
            dx[..., k] = (dy * forward(x + step, weight, bias, eps)).sum(axis=-1).imag / 1e-20
            dweight[k] = (dy * forward(x, weight + step, bias, eps)).sum().imag / 1e-20
            dbias[k] = (dy * forward(x, weight, bias + step, eps)).sum().imag / 1e-20
        return dx, dweight, dbias

    return forward(x, weight, bias, eps), pullback

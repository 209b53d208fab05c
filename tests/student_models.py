"""Data and models for `mh.diagnose`, written as students write them; all of them learn."""

import math

import numpy as np

import minimha as mh
from minimha import functional, ops

V, B, T, M, H = 23, 6, 12, 16, 2


def batch(seed):
    """Sequences of tokens, and the same shifted by one."""
    tokens = np.random.default_rng(seed).integers(0, V, (B, T + 1))
    return tokens[:, :-1], tokens[:, 1:]


def gpt(seed, **settings):
    sizes = {"context": T, "d_model": M, "num_heads": H, "num_layers": 2, "rng": seed}
    return mh.GPT(V, **(sizes | settings))


class Attention(mh.Module):
    """A student's own attention, of operations on Tensors."""

    mask, axis = mh.masks.causal(), -1

    def __init__(self, rng, std=0.3):
        self.qkv = [mh.Linear(M, M, bias=False, std=std, rng=rng) for _ in range(3)]
        self.out = mh.Linear(M, M, rng=rng)

    def __call__(self, x):
        q, k, v = (self.split(f(x)) for f in self.qkv)
        scores = self.scores(q, k)
        if self.mask is not None:
            scores = ops.where(self.mask.array(scores.shape, like=scores.data), scores, -1e9)
        return self.out(self.merge(functional.softmax(scores, axis=self.axis) @ v))

    def split(self, x):
        return x.reshape(*x.shape[:2], H, M // H).transpose(1, 2)

    def merge(self, heads):
        heads = heads.transpose(1, 2)
        return heads.reshape(*heads.shape[:2], M)

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(M // H)


class Block(mh.Module):
    def __init__(self, rng, attention=Attention):
        self.norms = [mh.LayerNorm(M), mh.LayerNorm(M)]
        self.attention = attention(rng)
        self.widen, self.narrow = mh.Linear(M, 4 * M, rng=rng), mh.Linear(4 * M, M, rng=rng)

    def __call__(self, x):
        x = self.add(x, self.attention(self.norms[0](x)))
        return self.add(x, self.narrow(self.activation(self.widen(self.norms[1](x)))))

    def add(self, x, y):
        return x + y

    def activation(self, x):
        return ops.maximum(x, 0.0)


class Student(mh.Module):
    """A student's own language model, which the broken ones change in one place."""

    def __init__(self, seed, attention=Attention, block=Block, layers=2):
        rng = np.random.default_rng(seed)
        self.tokens = mh.Embedding(V, M, std=0.3, rng=rng)
        self.places = mh.Embedding(T, M, std=0.3, rng=rng)
        self.blocks = [block(rng, attention) for _ in range(layers)]
        self.norm, self.head = mh.LayerNorm(M), mh.Linear(M, V, std=0.1, rng=rng)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))

    def embed(self, tokens):
        return self.tokens(tokens) + self.places(np.arange(tokens.shape[1]))

    def logits(self, x):
        return self.head(x)


def like(cls, changes):
    """A class with other methods or attributes."""
    return type(cls.__name__, (cls,), dict(changes))


def student(seed, *, model=(), attention=(), block=(), **settings):
    """A student's language model, with other methods or attributes of its parts, and its data."""
    parts = like(Attention, attention), like(Block, block)
    return like(Student, model)(seed, *parts, **settings), *batch(seed)


def edited(edit, **changes):
    """A function of a seed: a student's model whose weights `edit` changes."""

    def make(seed):
        model, *rest = student(seed, **changes)
        edit(model)
        return model, *rest

    return make


class Classifier(mh.Module):
    """An encoder that reads rows of an image, and pools its outputs."""

    def __init__(self, seed, classes=4):
        rng = np.random.default_rng(seed)
        self.table, self.places = mh.Embedding(V, M, rng=rng), mh.Embedding(T, M, rng=rng)
        self.block, self.norm = mh.Block(M, H, rng=rng), mh.LayerNorm(M)
        self.head = mh.Linear(M, classes, std=0.1, rng=rng)

    def __call__(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(self.block(x)).mean(axis=1))

    def embed(self, tokens):
        return self.table(tokens) + self.places(np.arange(tokens.shape[1]))


class Masking(Classifier):
    """One that hides padding, token 0, from attention and from the mean."""

    def __call__(self, tokens):
        real = tokens != 0
        x = self.norm(self.block(self.embed(tokens), real[:, None, None, :]))
        return self.head(self.pooled(x, real))

    def pooled(self, x, real):
        weights = (real / real.sum(axis=1, keepdims=True)).astype("float32")
        return (x * weights[..., None]).sum(axis=1)


def classified(seed):
    rng = np.random.default_rng(seed)
    return rng.integers(0, V, (8, T)), rng.integers(0, 4, 8)


def padded(seed):
    """Sequences of several lengths, filled up with token 0."""
    x, _ = classified(seed)
    x = np.where(x == 0, 1, x)
    lengths = np.random.default_rng(seed).integers(3, T, len(x))
    x = np.where(np.arange(T) < lengths[:, None], x, 0)
    return x, np.random.default_rng(seed + 1).integers(0, 4, len(x))

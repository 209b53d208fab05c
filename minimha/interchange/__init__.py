"""Weights as dictionaries of arrays: to and from modules, other libraries' layers, and files.

    arrays = state(module)             set_state(module, arrays)
    arrays = to_torch(mha)             mha = from_torch(arrays, num_heads)
    arrays = block_to_torch(block)     block = block_from_torch(arrays, num_heads)
    weights = to_keras(mha)            mha = from_keras(weights)
    write(arrays, path)                arrays = read(path)
    save_pretrained(model, folder)     model = from_pretrained(folder)
                                       tokenizer = PretrainedTokenizer(folder)

Copies in the same form and dtype are exact, bit for bit. What a model computes from them may differ
in the last bits, since a matrix read from a file may lie in memory in another order, and a CPU may
then add up the terms of a product in another order. Nothing here unpickles: a safetensors file
holds numbers and their names, but no code.
"""

from . import conventions
from .keras_layer import from_keras, to_keras
from .pretrained import from_pretrained, save_pretrained
from .pretrained_tokenizer import PretrainedTokenizer
from .safetensors_file import load, read, save, write
from .states import set_state, state
from .torch_block import block_from_torch, block_to_torch
from .torch_layer import from_torch, to_torch

__all__ = [
    "PretrainedTokenizer", "block_from_torch", "block_to_torch", "conventions", "from_keras",
    "from_pretrained", "from_torch", "load", "read", "save", "save_pretrained", "set_state",
    "state", "to_keras", "to_torch", "write",
]  # fmt: skip

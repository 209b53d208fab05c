"""Weights as dictionaries of arrays: to and from modules, torch's layer, and safetensors files.

    arrays = state(module)             set_state(module, arrays)
    arrays = to_torch(mha)             mha = from_torch(arrays, num_heads)
    write(arrays, path)                arrays = read(path)

All copies are exact, bit for bit. Nothing here unpickles: a safetensors file holds numbers and
their names, but no code.
"""

from .files import check_writable, written_whole
from .pretrained import from_pretrained, save_pretrained
from .safetensors_file import load, read, save, write
from .states import set_state, state
from .torch_layer import from_torch, to_torch

__all__ = [
    "check_writable", "from_pretrained", "from_torch", "load", "read", "save", "save_pretrained",
    "set_state", "state", "to_torch", "write", "written_whole",
]  # fmt: skip

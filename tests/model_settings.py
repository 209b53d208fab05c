"""Every setting of a GPT, with a value other than its default or that in SMALL.

Tests use them to find a setting that has no effect, that is lost on the way to a block or its
attention, that is not saved, or that ranks do not share.
"""

from dataclasses import fields

import minimha as mh
from minimha.transformers.settings import GPTSettings

SMALL = {"vocabulary": 7, "context": 6, "d_model": 8, "num_heads": 2, "num_layers": 2}
NAMES = [field.name for field in fields(GPTSettings)]

OTHER = {
    "vocabulary": 9,
    "context": 7,
    "d_model": 12,
    "num_heads": 4,
    "num_layers": 1,
    "num_kv_heads": 1,
    "head_dim": 6,
    "scale": 0.3,
    "softcap": 0.1,
    "qk_norm": True,
    "rope": mh.positions.Rope(),
    "window": 2,
    "sinks": 1,
    "attention_bias": False,
    "hidden": 5,
    "activation": "relu",
    "norm": "rms",
    "norm_eps": 0.1,
    "norm_of": "both",
    "bias": False,
    "dropout": 0.5,
    "rng": 1,
    "dtype": "float64",
    "layers": [{"window": 2}, {}],
    "tie": True,
    "scale_embeddings": True,
    "logit_softcap": 0.1,
}
NEEDED = {"sinks": {"window": 2}}
"""For a setting that has no effect alone, the others that it needs."""

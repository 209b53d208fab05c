"""Transformers built from the layers: a block, a GPT, its generation, and the encoder-decoder."""

from .block import Block, norm_layer
from .encoder_decoder import Decoder, Encoder, EncoderDecoder, greedy_decode
from .generation import check_sampling, generate, probabilities
from .gpt import GPT

__all__ = [
    "GPT", "Block", "Decoder", "Encoder", "EncoderDecoder", "check_sampling", "generate",
    "greedy_decode", "norm_layer", "probabilities",
]  # fmt: skip

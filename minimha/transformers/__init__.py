"""Transformers built from the layers: a block, a GPT, its generation, and the encoder-decoder."""

from .block import Block
from .encoder_decoder import Decoder, Encoder, EncoderDecoder, greedy_decode
from .generation import generate, probabilities, stream
from .gpt import GPT
from .speculation import Speculation, speculate

__all__ = [
    "GPT", "Block", "Decoder", "Encoder", "EncoderDecoder", "Speculation", "generate",
    "greedy_decode", "probabilities", "speculate", "stream",
]  # fmt: skip

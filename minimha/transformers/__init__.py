"""Transformers built from the layers: a block, a GPT, its generation, and the encoder-decoder."""

from .block import Block
from .encoder_decoder import Decoder, Encoder, EncoderDecoder, greedy_decode
from .generation import generate, probabilities, stream
from .gpt import GPT

__all__ = [
    "GPT", "Block", "Decoder", "Encoder", "EncoderDecoder", "generate", "greedy_decode",
    "probabilities", "stream",
]  # fmt: skip

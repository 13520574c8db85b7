"""Decoding as users call it: texts in, texts out, and the door into transformers."""

from diversed.generation.decoder import (
    Generation,
    PromptError,
    SpeculativeDecoder,
    checkpoint_verifier,
    head_verifier,
    row_key,
)
from diversed.generation.door import SpeculativeOutput, diversed_generate

__all__ = [
    "Generation",
    "PromptError",
    "SpeculativeDecoder",
    "SpeculativeOutput",
    "checkpoint_verifier",
    "diversed_generate",
    "head_verifier",
    "row_key",
]

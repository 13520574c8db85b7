"""Relaxed speculative decoding with a learnt verifier (DIVERSED, arXiv:2604.07622).

The decoding core is re-exported here. `SpeculativeDecoder` and `diversed_generate`, which need
transformers, are imported when they are first asked for.
"""

from typing import TYPE_CHECKING, Any

from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.core.types import DecodeCounts, DecodeResult, Status, Trace
from diversed.core.verifiers import (
    AutoregressiveVerifier,
    CascadeVerifier,
    DiversedVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    MarginVerifier,
    StaticVerifier,
    TypicalVerifier,
    make_verifier,
)

if TYPE_CHECKING:
    from diversed.generation import SpeculativeDecoder, diversed_generate

__version__ = "0.1.0"

__all__ = [
    "AutoregressiveVerifier",
    "CascadeVerifier",
    "DecodeCounts",
    "DecodeResult",
    "DecodeSettings",
    "DiversedVerifier",
    "FuzzyVerifier",
    "LenientVerifier",
    "LosslessVerifier",
    "MarginVerifier",
    "Sampling",
    "SpeculativeDecoder",
    "StaticVerifier",
    "Status",
    "Trace",
    "TypicalVerifier",
    "diversed_generate",
    "make_verifier",
]


def __getattr__(name: str) -> Any:
    """Import what needs transformers on first use."""
    if name in ("SpeculativeDecoder", "diversed_generate"):
        from diversed import generation

        return getattr(generation, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

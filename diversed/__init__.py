"""Relaxed speculative decoding with a learnt verifier (DIVERSED, arXiv:2604.07622)."""

__version__ = "0.1.0"

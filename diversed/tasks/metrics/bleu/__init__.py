"""BLEU and chrF as a module of `evaluate`."""

"""ROUGE as a module of `evaluate`."""

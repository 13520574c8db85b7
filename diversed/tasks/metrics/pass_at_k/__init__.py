"""pass@k as a module of `evaluate`."""

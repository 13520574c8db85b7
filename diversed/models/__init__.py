"""Models: ensemble head, transformers adapter, loading, the embedded pair."""

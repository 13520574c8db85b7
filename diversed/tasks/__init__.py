"""Tasks: prompts in, scores out."""

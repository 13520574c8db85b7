"""The decoding core: torch and the standard library only; no tokenizer, no config, no task."""

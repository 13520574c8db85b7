"""Decode a task with a rule and say how well and how fast it went."""

"""Experiment trackers; the only package that imports wandb."""

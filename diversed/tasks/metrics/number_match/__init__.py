"""Exact match of numbers as a module of `evaluate`."""

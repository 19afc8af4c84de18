"""Weights in other checkpoint formats."""

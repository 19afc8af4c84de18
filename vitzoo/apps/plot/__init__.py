"""Figures of a network."""

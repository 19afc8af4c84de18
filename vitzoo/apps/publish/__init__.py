"""Weights and models for other libraries and the Hub."""

"""Fixtures of the tests of advice: weights files."""

from registered import weights as weights

"""Fixtures of the tests of loading: a registered network, and weights files."""

from registered import augreg as augreg, saved as saved, weights as weights, zoo as zoo

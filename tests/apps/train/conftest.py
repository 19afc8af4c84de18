"""Fixtures of the tests of adapters."""

from registered import augreg as augreg, zoo as zoo

"""Fixtures of the tests of config overrides."""

from registered import saved as saved, zoo as zoo

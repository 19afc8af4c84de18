"""How well features tell classes apart."""

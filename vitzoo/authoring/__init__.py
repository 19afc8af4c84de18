"""What is behind `vitzoo plugins` and `vitzoo registry`."""

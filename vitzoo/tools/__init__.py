"""The functions behind `vitzoo plugins ...` and `vitzoo registry ...`."""

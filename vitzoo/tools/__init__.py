"""What `vitzoo plugins ...` and `vitzoo registry ...` run."""

"""The entries of the registry as data classes, and the reading of manifests; torch-free."""

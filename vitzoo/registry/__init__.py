"""What a name means: variants, parts, labels and their listing; torch-free."""

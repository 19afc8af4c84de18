"""Images in, tensors out."""

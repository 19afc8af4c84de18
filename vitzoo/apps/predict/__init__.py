"""Labels, logits, embeddings and tokens of images."""

"""Embeddings of many images in Parquet files."""

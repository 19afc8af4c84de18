"""Networks at work on images."""

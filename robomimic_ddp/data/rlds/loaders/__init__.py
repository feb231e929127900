"""Torch loaders over the pipeline's batches, and their memory."""

"""The torch side: loaders over the pipeline's batches, and their memory."""

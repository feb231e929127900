"""Language instructions: the model that encodes them, and its embeddings."""

"""One optimizer update: precision, accumulation, gradient norm, averaged copy."""

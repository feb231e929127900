"""The host's command line, config and edited lines, read before torch is imported."""

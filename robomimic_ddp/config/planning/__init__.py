"""The plan: what follows from the options, the launcher and the host's config."""

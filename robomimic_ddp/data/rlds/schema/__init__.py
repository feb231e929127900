"""How a dataset's features become the host's observations and actions."""

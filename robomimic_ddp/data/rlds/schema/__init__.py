"""How a data set's features become the host's observations and actions."""

"""One run: nets, loaders, the epoch loop, resume and rollouts; `api` holds the names hosts use."""

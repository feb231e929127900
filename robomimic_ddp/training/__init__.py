"""One run: nets, loaders, epoch loop, resume and rollouts; `api` has the names for hosts."""

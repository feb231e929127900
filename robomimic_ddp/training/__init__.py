"""One run: nets, loaders, the epoch loop, resume and rollouts; `api` has the names that
hosts use.
"""

"""Environment, options, the host's config, and the plan made of them."""

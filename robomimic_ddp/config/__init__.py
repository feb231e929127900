"""What a run is asked for: environment, options, the host's config, and the plan made of them."""

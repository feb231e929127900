"""`robomimic-ddp bench`: the user's own job on several numbers of ranks."""

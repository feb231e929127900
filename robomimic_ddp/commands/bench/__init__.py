"""`robomimic-ddp bench`: compares speed in one run, as ratios."""

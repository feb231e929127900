"""`robomimic-ddp bench`: speed, side by side in one run, as ratios."""

"""`robomimic-ddp evaluate`: plays the policies of a run's checkpoints, outside of its training."""

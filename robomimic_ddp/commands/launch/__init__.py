"""`robomimic-ddp launch`: turns flags and variables into one torchrun command."""

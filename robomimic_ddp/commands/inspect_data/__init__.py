"""`robomimic-ddp inspect-data PATH`: what a dataset holds, and a config to begin with."""

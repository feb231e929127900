"""`robomimic-ddp inspect-data PATH`: what a data set holds, and a config to begin with."""

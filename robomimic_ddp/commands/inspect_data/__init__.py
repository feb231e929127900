"""`robomimic-ddp inspect-data PATH`: shows what a dataset contains, and writes a config."""

"""`robomimic-ddp doctor`: finds what would stop a job on this machine, before it runs."""

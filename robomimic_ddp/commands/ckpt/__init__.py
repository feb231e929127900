"""`robomimic-ddp sweep`: many training runs, each on separate GPUs, and a table at the end."""

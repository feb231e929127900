"""`robomimic-ddp sweep`: many training runs, each on GPUs of its own, and a table at their end."""

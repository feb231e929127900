"""`robomimic-ddp inspect-data`: shows a dataset or the data of a job, and drafts a config."""

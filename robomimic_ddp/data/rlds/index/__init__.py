"""Index of a dataset: files, offsets of records, statistics, splits; and its cache."""

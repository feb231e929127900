"""What a dataset holds: files, records and their places, statistics, splits; and the caches."""

"""What a data set holds: files, records and their places, statistics, splits; and the caches."""

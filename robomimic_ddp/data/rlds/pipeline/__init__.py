"""Records to windows, a shuffle buffer, decoded batches, in a process for each rank."""

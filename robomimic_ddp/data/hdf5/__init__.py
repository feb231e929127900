"""HDF5 data sets: their structure, and what is wrong with a file."""

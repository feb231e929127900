"""HDF5 datasets: their structure, and what is wrong with a file."""

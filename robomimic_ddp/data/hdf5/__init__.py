"""Reads and validates HDF5 datasets."""

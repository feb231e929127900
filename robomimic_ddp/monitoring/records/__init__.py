"""The files in a run directory that say how far the run is."""

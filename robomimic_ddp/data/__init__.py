"""What reaches a rank: sampling of any DataLoader, RLDS, HDF5 checks and language."""

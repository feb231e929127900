"""The host as a whole: its folder, train scripts and faults, and whether it is parallel already."""

"""The host as a whole: its folder and train scripts, and whether it is parallel already."""

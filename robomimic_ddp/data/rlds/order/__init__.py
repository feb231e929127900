"""Which rank reads what, in which order: pure functions."""

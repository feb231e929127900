"""Which rank reads what, and when: pure functions of numbers."""

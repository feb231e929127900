"""The state of a run: what it remembers, and how it is saved and resumed."""

"""A small manipulation task of our own, for demos and tests: simulator, scripted expert, RLDS data
set.
"""

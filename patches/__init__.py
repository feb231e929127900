"""Edits a robomimic-style codebase (the host) so that the same training command scales under
torchrun.

Source text goes in, source text and a typed outcome per seam come out; see `engine`. Nothing here
is imported by the runtime, and nothing here imports the host.
"""

"""Edits a robomimic-style codebase (the host) so that its training command scales under torchrun.

Imports neither the runtime nor the host, and is imported by the command line only.
"""

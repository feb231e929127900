"""Trains robomimic-style codebases on several GPUs; edited hosts call `robomimic_ddp.api`.

Importing the package loads neither torch nor TensorFlow (tested).
"""

__version__ = "0.1.0"
API_VERSION = 1
"""Version of `robomimic_ddp.api`, raised when a name changes its meaning or is removed. Hosts
patched for another version are refused.
"""

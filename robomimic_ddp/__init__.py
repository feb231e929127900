"""Scale a robomimic-style codebase over several GPUs; see `robomimic_ddp.api` for what edited hosts
call.

Importing the package loads neither torch nor TensorFlow (a test holds this).
"""

__version__ = "0.1.0"
API_VERSION = 1
"""Of `robomimic_ddp.api`. Raised when a name changes its meaning or goes; hosts that were patched
for another version are refused.
"""

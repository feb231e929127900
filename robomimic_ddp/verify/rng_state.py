"""The random states of a rank: torch's, and those of host augmentations."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch

from robomimic_ddp.verify.comparison import Different
from robomimic_ddp.verify.tensor_checksums import digest

TORCH_CAUSE = (
    "Ranks would draw the same noise and timesteps, and the batch would count as one rank's. "
    "Something re-seeds torch with the same value on every rank."
)
OTHERS_CAUSE = (
    "Ranks would draw the same augmentation. Something re-seeds numpy or random on every rank."
)


class Streams(NamedTuple):
    """States of the generators at one moment."""

    torch_states: tuple
    other_states: tuple

    @classmethod
    def now(cls) -> Streams:
        """Of torch's CPU and current CUDA generators, numpy's and Python's global ones."""
        states = [torch.get_rng_state()]
        if torch.cuda.is_initialized():
            states.append(torch.cuda.get_rng_state())
        return cls(tuple(states), (np.random.get_state(), random.getstate()))

    def different(self, others_too: bool = True) -> list[Different]:
        """States that ranks must not share; `others_too`: numpy's and Python's as well."""
        others = digest(self.other_states) if others_too else None
        return [
            Different("torch's random state", digest(self.torch_states), TORCH_CAUSE),
            Different("numpy's and Python's random state", others, OTHERS_CAUSE),
        ]

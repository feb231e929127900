"""The random states of a rank: torch's, and those of host augmentations; each by itself."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch

from robomimic_ddp.verify.comparison import Different
from robomimic_ddp.verify.tensor_checksums import digest

TORCH_CAUSE = (
    "Ranks would draw the same noise and timesteps, and the batch would count as one rank's. "
    "Something re-seeds torch with the same value on every rank."
)
OTHERS_CAUSE = "Ranks would draw the same augmentation. Something re-seeds {} on every rank."
_OTHERS = {"numpy's random state": "numpy", "Python's random state": "random"}


class Streams(NamedTuple):
    """States of the generators at one moment, by name."""

    states: dict[str, Any]

    @classmethod
    def now(cls) -> Streams:
        """Return the states of torch's CPU and current CUDA generators, numpy's and Python's."""
        states: dict[str, Any] = {"torch's random state (CPU)": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            states["torch's random state (GPU)"] = torch.cuda.get_rng_state()
        return cls({**states, **dict(zip(_OTHERS, (np.random.get_state(), random.getstate())))})

    def different(self, since: Streams | None = None) -> list[Different]:
        """States that ranks must not share. Those of numpy and Python may be equal if they are what
        they were at `since`: training draws nothing from them; a simulator may have seeded them.
        """
        items = []
        for name, state in self.states.items():
            value: str | None = digest(state)
            if name in _OTHERS and since is not None and digest(since.states[name]) == value:
                value = None
            cause = OTHERS_CAUSE.format(_OTHERS[name]) if name in _OTHERS else TORCH_CAUSE
            items.append(Different(name, value, cause))
        return items

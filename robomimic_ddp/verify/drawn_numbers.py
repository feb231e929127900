"""The random numbers of the first training step: what torch draws, and a diffusion's noise.

Random states prove nothing of a generator that the host made by itself; its numbers do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import host_algo
from robomimic_ddp.distributed.gradients import fsdp
from robomimic_ddp.verify.comparison import Different
from robomimic_ddp.verify.tensor_checksums import checksum

_DRAWS = frozenset(
    ("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "normal", "bernoulli")
    + ("multinomial", "normal_", "uniform_", "random_", "exponential_", "bernoulli_")
)
_MOST = 32
"""Draws of a step that are compared."""
_BITS = 30
"""Least information in numbers that are compared: equal by chance below 1e-9."""
CAUSE = (
    "Ranks must draw different noise, timesteps and augmentation: a generator of the host is "
    "seeded alike on every rank. Seed it by the rank, too, or draw from torch's own."
)


class DrawnNumbers(TorchFunctionMode):
    """Notes what is drawn between `begin` and `end`, on one rank; not within compiled code."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Different] = []
        self.is_done = False
        """Whether it has begun once."""
        self._counts: dict[str, int] = {}
        self._undo = ExitStack()

    def begin(self, algo: Any, is_compiled: bool) -> None:
        """Watches the draws of torch's functions, and the noise that a noise scheduler adds."""
        self.is_done = True
        for name, scheduler in host_algo.noise_schedulers(algo):
            add = self._noting(f"{name}.add_noise", scheduler.add_noise)
            self._undo.enter_context(swapped(scheduler, "add_noise", add))
        if not is_compiled:  # compiled code would be compiled again without this
            self._undo.enter_context(self)

    def end(self) -> None:
        """Takes the watch away again."""
        self._undo.close()

    def _noting(self, name: str, add_noise: Callable) -> Callable:
        def add(samples: Any, noise: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(f"the noise of {name}", noise)
            return add_noise(samples, noise, *args, **kwargs)

        return add

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        if name in _DRAWS and isinstance(result, torch.Tensor):
            self._note(f"what torch's {name} draws", result)
        return result

    def _note(self, what: str, numbers: torch.Tensor) -> None:
        if len(self.draws) >= _MOST or fsdp.is_sharded(numbers) or not _tell(numbers):
            return
        count = self._counts[what] = self._counts.get(what, 0) + 1
        value = (tuple(numbers.shape), *checksum(numbers))
        self.draws.append(Different(f"{what} ({count}. in the first step)", value, CAUSE))


def _tell(numbers: torch.Tensor) -> bool:
    """Return whether others of the same distribution are never equal by chance.

    Two of its values agree with a probability that is estimated from how often values repeat.
    """
    flat = numbers.detach().flatten()[:10_000]
    count = len(flat)
    if count < 2:
        return False
    _, times = flat.unique(return_counts=True)
    pairs = float((times * (times - 1)).sum()) / (count * (count - 1))
    return -count * math.log2(max(pairs, 1 / count)) >= _BITS

"""Refuses the step of an optimizer whose gradients nothing has averaged over ranks.

torch calls it before each step of any optimizer, so it need not know where a host keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import group, host_algo
from robomimic_ddp.distributed.gradients import optimizer_ddp
from robomimic_ddp.errors import WrapError


class StepGuard:
    """Looks at the first step with gradients of each optimizer of this process, and counts all.

    Rank-local, and without a read from the device: later steps cost a look into a set.
    """

    def __init__(self, algo: Any) -> None:
        self.algo = algo
        self.steps = 0
        """Steps of any optimizer so far."""
        self._acting = False
        self._averaged: WeakSet[torch.optim.Optimizer] = WeakSet()

    def acting(self) -> AbstractContextManager[None]:
        """For rollouts, ignores optimizers: each rank plays other episodes, and an optimizer that
        plans their actions belongs to that rank alone.
        """
        return swapped(self, "_acting", True)

    def before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """Raises WrapError at the first step of an optimizer whose gradients are this rank's."""
        if self._acting:
            return
        self.steps += 1
        if optimizer not in self._averaged:
            self._look_at(optimizer, closure=kwargs.get("closure", (*args, None, None)[1]))

    def _look_at(self, optimizer: torch.optim.Optimizer, closure: Any) -> None:
        trained = host_algo.held_by(optimizer)
        if closure is None:  # else gradients are computed within the step
            trained = [parameter for parameter in trained if parameter.grad is not None]
        if not trained:
            return
        loose = optimizer_ddp.outside_parallel_nets(self.algo, optimizer, trained)
        by_optimizer = optimizer_ddp.of(optimizer)
        if by_optimizer is not None and closure is None:
            averaged = set(map(id, by_optimizer.reduced))
            loose = [parameter for parameter in loose if id(parameter) not in averaged]
        if not loose:
            self._averaged.add(optimizer)
            return
        names = {id(value): name for name, value in host_algo.named_optimizers(self.algo)}
        name = names.get(id(optimizer), f"a {type(optimizer).__name__} that the algorithm lacks")
        ranks = group.world_size()
        what = f"{len(loose)} tensor(s), the first of shape {list(loose[0].shape)}"
        if by_optimizer is not None and closure is not None:
            raise WrapError(
                f"optimizer {name} was stepped with a closure on rank {group.rank()}, which "
                f"computes gradients of {what}, after they are averaged: {ranks} ranks would train "
                f"{ranks} models. Expected backward() and then step() without a closure, or nets "
                "that DDPUtils.parallel(net) wraps."
            )
        raise WrapError(
            f"optimizer {name} was stepped on rank {group.rank()} with gradients of {what}, that "
            f"were not averaged over the ranks: {ranks} ranks would train {ranks} models. Expected "
            "each optimizer, with all of its parameters, in an attribute of the algorithm (in "
            "lists, dictionaries and objects of it, too) before the epoch loop begins. Create it "
            "there; for values that belong to one rank's batch, use torch.autograd.grad instead."
        )


@contextmanager
def installed(algo: Any) -> Iterator[StepGuard]:
    """For the block, has torch ask a `StepGuard` before each step of any optimizer."""
    guard = StepGuard(algo)
    handle = register_optimizer_step_pre_hook(guard.before_step)
    try:
        yield guard
    finally:
        handle.remove()

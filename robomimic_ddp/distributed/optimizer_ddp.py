"""One DistributedDataParallel for each optimizer, through which its loss passes.

Algorithms other than the diffusion policy call their nets by many methods (`forward_train`), and
one net in the losses of several optimizers, so DDP around a net would miss backward passes or
average some twice. Here DDP has exactly the parameters of one optimizer. Its forward returns the
loss as it is, which prepares DDP's reducer for the backward pass that follows, whatever the loss
was computed with. Gradients that reach other optimizers' parameters in that pass stay local: their
reducers do not expect any, and the host drops them before those optimizers' own pass.

A host that steps an optimizer after a plain `backward()` gets the mean over ranks just before
the step, which is exact where nothing has changed the gradients in between.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.distributed import group, host_algo, parallel, watchdog
from robomimic_ddp.errors import WrapError

_made: WeakKeyDictionary[torch.optim.Optimizer, OptimizerDDP] = WeakKeyDictionary()


class _Parameters(nn.Module):
    """The parameters of one optimizer; its forward returns the loss."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.trained = nn.ParameterList(parameters)
        # Where each pass uses every parameter, torch's C++ prints a warning that nothing filters.
        self.never_used = nn.Parameter(torch.zeros_like(parameters[0].detach().flatten()[:1]))

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


class OptimizerDDP:
    """Averages the gradients of `parameters`, all or some of those that `optimizer` updates.

    Has the attributes of a parallel net's state by which a model's reducers are looked at: `name`,
    `parallel`, `reduced`, `arrival`, `training_forwards`.
    """

    arrival = None
    """Buckets stay as they were built, since DDP looks for unused parameters in every pass."""

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.Tensor],
        ddp_options: dict,
    ) -> None:
        self.name, self.reduced = name, parameters
        self.training_forwards = 0
        """Losses that have passed through."""
        self._prepared = self._agreed = False
        self.averages_in_step = False
        """Whether the latest gradients were averaged before the step, not in the backward pass."""
        self._grad_versions: dict[int, int] = {}
        """Of each gradient, by its parameter, when the host's own backward pass had written it."""
        whole = [one for one in parameters if isinstance(one, nn.Parameter)]
        self.parallel = None
        if len(whole) == len(parameters):
            self.parallel = DistributedDataParallel(_Parameters(whole), **ddp_options)
        self._undo = ExitStack()
        self._undo.callback(optimizer.register_step_pre_hook(self._before_step).remove)
        self._watched = self._undo.enter_context(ExitStack())
        for parameter in parameters:
            self._watch(parameter)

    def remove(self) -> None:
        """Takes the hooks away again."""
        self._undo.close()
        self.parallel = None

    def through(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss; its next backward pass, which is collective, averages gradients."""
        if not loss.requires_grad:
            raise WrapError(
                f"the loss of optimizer {self.name} needs no gradient on rank {group.rank()}: all "
                "that it was computed with is frozen, or it was computed under no_grad(). Expected "
                "a loss of what the optimizer trains, on every rank: those that have one would "
                "wait for this rank. Freeze nets on all ranks alike, before training begins."
            )
        if self.parallel is None:  # a tensor that is no Parameter, averaged before the step
            return loss
        self._agree("during the backward pass")
        watchdog.began()
        self._watched.close()
        self._prepared = True
        self.training_forwards += 1
        return self.parallel(loss)

    def _watch(self, parameter: torch.Tensor) -> None:
        """Notes the version of its gradient whenever a backward pass has written it."""

        def note(*_: Any) -> None:
            if parameter.grad is not None:  # a pass may bring nothing here
                self._grad_versions[id(parameter)] = parameter.grad._version

        # By the graph's node that writes it, as DDP does: torch 2.0 has no such hook of a tensor.
        # The hook is lost with the node, which only this keeps.
        writer = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        handle = writer.register_hook(note)
        self._watched.callback(lambda kept: handle.remove(), writer)

    def _before_step(self, *_: Any) -> None:
        self.averages_in_step, self._prepared = not self._prepared, False
        if self.averages_in_step:
            self._agree("before the step")
            self._require_unchanged()
            self._average()

    def _agree(self, way: str) -> None:
        """Collective once: ranks that average in two ways would send each other what is no match,
        which ends in gloo's own abort, or in a wait.
        """
        if self._agreed:
            return
        self._agreed = True
        ways = group.gather_objects(f"optimizer {self.name} averages gradients {way}")
        if len(set(ways)) > 1:
            found = "; ".join(f"rank {rank}: {one}" for rank, one in enumerate(ways))
            raise WrapError(
                f"the ranks do not take the same step: {found}. Expected the same on all ranks: "
                "during the backward pass where the loss goes to the host's "
                "torch_utils.backprop_for_loss, before the step elsewhere. Look for a condition on "
                "the rank, or on its own data, around that call."
            ).on_all_ranks()

    def _require_unchanged(self) -> None:
        written = [one for one in self.reduced if one.grad is not None]
        changed = [one for one in written if one.grad._version != self._grad_versions.get(id(one))]
        if not changed:
            return
        raise WrapError(
            f"optimizer {self.name} was stepped on rank {group.rank()} after a backward() outside "
            f"the host's torch_utils.backprop_for_loss, and its gradients were changed in between "
            "(clipped, scaled): each rank changed its own, and their mean is not the gradient of "
            "one process. Expected TorchUtils.backprop_for_loss(net, optim, loss, max_grad_norm), "
            "which clips the mean. Call that for this loss, or put DDPUtils.parallel(net) around "
            "the net and call it by net(...)."
        )

    def _average(self) -> None:
        """Collective: one message; a gradient that no rank has stays absent, as in one process."""
        watchdog.began()
        given = [one.grad is not None for one in self.reduced]
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.reduced]
        flags = grads[0].new_tensor(given)
        total = group.sum_over_ranks(torch.cat([flags, *(one.flatten() for one in grads)]))
        flags, mean = total[: len(given)], total[len(given) :] / group.world_size()
        # What this rank has, somebody has: only else a GPU is waited for.
        has_any = given if all(given) else flags.tolist()
        means = mean.split([one.numel() for one in grads])
        for has, parameter, own in zip(has_any, self.reduced, means):
            parameter.grad = own.view_as(parameter) if has else None


def build(algo: Any, options: Any, undo: ExitStack) -> None:
    """Collective: has every optimizer average the gradients of what it updates outside parallel
    nets, until `undo` is closed. Weights must be equal on all ranks. `options`: ours.
    """
    ddp_options = {
        **parallel.ddp_options(options, nn.Module()),
        **parallel.EQUAL_WEIGHTS,
        "static_graph": False,
        "find_unused_parameters": True,
    }
    for name, optimizer in host_algo.named_optimizers(algo):
        loose = outside_parallel_nets(algo, optimizer)
        if loose:
            _made[optimizer] = one = OptimizerDDP(name, optimizer, loose, ddp_options)
            undo.callback(_made.pop, optimizer, None)
            undo.callback(one.remove)


def of(optimizer: torch.optim.Optimizer) -> OptimizerDDP | None:
    """Return what averages the gradients of an optimizer, unless its parallel nets do."""
    return _made.get(optimizer)


def among(algo: Any) -> list[OptimizerDDP]:
    """Return what averages the gradients of the algorithm's optimizers."""
    found = [of(optimizer) for _, optimizer in host_algo.named_optimizers(algo)]
    return [one for one in found if one is not None]


def reducers(algo: Any) -> list[Any]:
    """Return what averages gradients: states of the parallel nets, and what `build` made."""
    nets = parallel.parallel_among(host_algo.named_modules(algo))
    return [*(parallel.state_of(net) for _, net in nets), *among(algo)]


def outside_parallel_nets(
    algo: Any, optimizer: torch.optim.Optimizer, parameters: list | None = None
) -> list[torch.Tensor]:
    """Return what `optimizer` trains that no parallel net of `algo` averages. `parameters`: those
    of the optimizer that are looked at, by default all.
    """
    nets = parallel.parallel_among(host_algo.named_modules(algo))
    covered = {id(parameter) for _, net in nets for parameter in net.parameters()}
    held = host_algo.held_by(optimizer) if parameters is None else parameters
    return [one for one in held if one.requires_grad and id(one) not in covered]

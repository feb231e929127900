"""Averages over ranks the gradients of one optimizer, whose loss passes through it.

Algorithms other than the diffusion policy call their nets by many methods (`forward_train`), and
one net in the losses of several optimizers, so DDP around a net would miss backward passes or
average some twice. Here exactly the parameters of one optimizer are averaged, at the end of the
backward pass of its loss, whatever the loss was computed with. Gradients that reach other
optimizers' parameters in that pass stay local: the host drops them before those optimizers' pass.

Parameters of less than `FLAT_BYTES` are averaged by one message. Larger ones have a
DistributedDataParallel, which sends while the pass still computes. Its forward returns the loss as
it is, which prepares DDP's reducer for the backward pass that follows.

A host that steps an optimizer after a plain `backward()` gets the mean over ranks just before the
step, or just before torch's functions clip or unscale the gradients, by one message in their own
type. Gradients that a `GradientWatch` finds changed in between are refused: their mean is not the
gradient of one process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.distributed import group, host_algo, main_rank, watchdog
from robomimic_ddp.distributed.gradients import flat_mean, parallel
from robomimic_ddp.distributed.gradients.gradient_watch import GradientWatch
from robomimic_ddp.errors import WrapError

FLAT_BYTES = 4_000_000
"""Parameters of an optimizer that have fewer bytes are averaged by one message."""
_averaging: WeakKeyDictionary[torch.optim.Optimizer, OptimizerDDP] = WeakKeyDictionary()


class _Parameters(nn.Module):
    """The parameters of one optimizer; its forward returns the loss, with the same bits."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        # Without elements, and in every loss: DDP sends only once a pass has reached a parameter.
        # Of two dimensions for PowerSGD; minus, since -0.0 + 0.0 is 0.0.
        self.always = nn.Parameter(parameters[0].new_zeros(1, 0))
        self.trained = nn.ParameterList(parameters)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss - self.always.sum(dtype=loss.dtype)


class OptimizerDDP:
    """Averages the gradients of `parameters`, all or some of those that `optimizer` updates: by one
    message, or by DDP where `ddp_options` are given and no tensor is a plain one. `only_ddp_has`:
    the options of ours that only DDP follows.

    Has the attributes of a parallel net's state by which a model's reducers are looked at: `name`,
    `parallel`, `reduced`, `training_forwards`.
    """

    def __init__(
        self,
        name: str,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.Tensor],
        ddp_options: dict | None,
        only_ddp_has: str,
    ) -> None:
        self.name, self.reduced, self._only_ddp_has = name, parameters, only_ddp_has
        self.training_forwards = 0
        """Losses that have passed through."""
        self._is_prepared = self._is_agreed = False
        self.after_averaging: Callable[[], None] | None = None
        """Called when gradients were averaged, before anything clips them."""
        self._is_averaged = False
        """Whether they were, since the latest backward pass."""
        self.parallel = None
        if ddp_options is not None and all(isinstance(p, nn.Parameter) for p in parameters):
            self.parallel = DistributedDataParallel(_Parameters(parameters), **ddp_options)
        self._mean = flat_mean.FlatMean(parameters)
        self._undo = ExitStack()
        self._undo.callback(optimizer.register_step_pre_hook(self._before_step).remove)
        self._watch = GradientWatch(parameters, self._note_write)
        self._undo.callback(self._watch.close)

    def remove(self) -> None:
        """Takes the hooks away again."""
        self._undo.close()
        self.parallel = None

    @property
    def message_seconds(self) -> float | None:
        """Seconds that a message takes while nothing is computed; None where DDP sends."""
        return self._mean.seconds

    def average_in_backward(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss; its next backward pass, which is collective, averages gradients."""
        if not loss.requires_grad:
            raise WrapError(
                f"the loss of optimizer {self.name} needs no gradient on rank {group.rank()}: all "
                "nets that it was computed with are frozen, or it was computed under no_grad(). "
                "Expected a loss of what the optimizer trains, on every rank: the other ranks "
                "would wait for this one. Freeze the same nets on all ranks, before training "
                "begins."
            )
        self._agree("during the backward pass")
        watchdog.began()
        self._watch.close()
        self._is_prepared = True
        self.training_forwards += 1
        if self.parallel is not None:
            loss = _with_filtered_warnings(lambda: self.parallel(loss))
        else:
            loss = loss.view_as(loss)  # passes of what it was computed with call no hook of it
        loss.register_hook(self._average_at_end)
        return loss

    def _average_at_end(self, _: torch.Tensor) -> None:
        queue = Variable._execution_engine.queue_callback
        if self.parallel is None:
            queue(self._mean.average)
        if self.after_averaging is not None:
            queue(lambda: queue(self.after_averaging))  # DDP's callback may be queued after this

    def _note_write(self) -> None:
        self._is_averaged = False

    def average_before_clipping(self) -> None:
        """Collective: gradients of a plain backward pass become the mean over ranks, once."""
        if self._is_prepared or self._is_averaged:
            return
        self._agree("before the step")
        if self.parallel is not None:
            self._leave_ddp()
        self._require_unchanged()
        watchdog.began()
        self._mean.average()
        self._is_averaged = True
        if self.after_averaging is not None:
            self.after_averaging()

    def _leave_ddp(self) -> None:
        """Frees DDP's buckets, which a plain backward pass does not fill."""
        self.parallel = None
        if self._only_ddp_has:
            main_rank.say(
                f"note: optimizer {self.name} is stepped after a plain backward(), so its "
                f"gradients are sent as they are, by one message, without {self._only_ddp_has}. "
                "The host's torch_utils.backprop_for_loss would send them by DDP."
            )

    def _before_step(self, *_: Any) -> None:
        self.average_before_clipping()
        self.end_step()

    def end_step(self) -> None:
        """The gradients of the next backward pass are averaged again."""
        self._is_prepared = self._is_averaged = False

    def _agree(self, way: str) -> None:
        """Collective once: ranks that average in two ways would send each other what does not
        match, which ends in gloo's own abort, or in a wait.
        """
        if self._is_agreed:
            return
        self._is_agreed = True
        ways = group.gather_objects(f"optimizer {self.name} averages gradients {way}")
        if len(set(ways)) > 1:
            first_ranks = {way: ways.index(way) for way in ways}
            by_rank = "; ".join(f"rank {rank}: {way}" for way, rank in first_ranks.items())
            raise WrapError(
                f"the ranks do not take the same step: {by_rank}. Expected the same on all ranks: "
                "during the backward pass where the loss goes to the host's "
                "torch_utils.backprop_for_loss, before the step elsewhere. Look for a condition on "
                "the rank, or on its own data, around that call."
            ).on_all_ranks()

    def _require_unchanged(self) -> None:
        if not self._watch.are_changed():
            return
        raise WrapError(
            f"the gradients of optimizer {self.name} cannot be averaged before its step on rank "
            f"{group.rank()}: they were changed, in this step or the one before, after a "
            "backward() outside the host's torch_utils.backprop_for_loss, or are left from its "
            "last step and are clipped with those of another optimizer. Their mean is not the "
            "gradient of one process. Expected torch.nn.utils.clip_grad_norm_(...), called by that "
            "name, or TorchUtils.backprop_for_loss(net, optim, loss, max_grad_norm), which clip "
            "the mean. Call one of these with the parameters of the optimizer that is stepped "
            "next and no others, or put DDPUtils.parallel(net) around the net and call it by "
            "net(...)."
        )


def _with_filtered_warnings(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what `call` does. Where a pass uses every parameter, torch's C++ warns, past Python's
    filters (`parallel.without_false_alarms`) unless a function of torch's own, as here, calls it.
    A parameter that no pass uses would silence it as well, and cost a wait for the GPU each time.
    """
    results = []
    torch.zeros(1, device="cpu").apply_(lambda value: results.append(call()) or value)
    return results[0]


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
    only_ddp_has = [f"ddp.kwargs.{name}" for name in options.kwargs]
    if options.comm != "none":
        only_ddp_has.append(f"ddp.comm={options.comm}")
    for name, optimizer in host_algo.named_optimizers(algo):
        parameters = outside_parallel_nets(algo, optimizer)
        if parameters:
            size = sum(p.numel() * p.element_size() for p in parameters)
            by_ddp = ddp_options if only_ddp_has or size >= FLAT_BYTES else None
            _averaging[optimizer] = OptimizerDDP(
                name, optimizer, parameters, by_ddp, " and ".join(only_ddp_has)
            )
            undo.callback(_averaging.pop, optimizer, None)
            undo.callback(_averaging[optimizer].remove)
    averaging = among(algo)
    if averaging:
        for module in (nn.utils, nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                clip = functools.partial(_clip_mean, averaging, getattr(module, name))
                undo.enter_context(swapped(module, name, clip))
        scaler = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
        undo.enter_context(swapped(scaler, "unscale_", _on_mean(scaler.unscale_)))
        undo.enter_context(swapped(scaler, "step", _on_mean(scaler.step, ends_step=True)))


def _clip_mean(
    averaging: list[OptimizerDDP], clip: Callable, parameters: Any, *args: Any, **kwargs: Any
) -> Any:
    """Collective where gradients of a plain backward pass are clipped: the mean is."""
    clipped = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    known = set(map(id, clipped))
    for by_optimizer in averaging:
        if not known.isdisjoint(map(id, by_optimizer.reduced)):
            by_optimizer.average_before_clipping()
    return clip(clipped, *args, **kwargs)


def _on_mean(method: Callable, ends_step: bool = False) -> Callable:
    """Return a method of GradScaler, collective: all ranks look for the overflow of the mean,
    so that all of them leave a step out, or none.
    """

    @functools.wraps(method)
    def on_mean(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        averaging = of(optimizer)
        if averaging is not None:
            averaging.average_before_clipping()
        result = method(scaler, optimizer, *args, **kwargs)
        if averaging is not None and ends_step:
            averaging.end_step()  # as a step that is left out does not
        return result

    return on_mean


def of(optimizer: torch.optim.Optimizer) -> OptimizerDDP | None:
    """Return what averages the gradients of an optimizer, unless its parallel nets do."""
    return _averaging.get(optimizer)


def among(algo: Any) -> list[OptimizerDDP]:
    """Return what averages the gradients of the algorithm's optimizers."""
    optimizers = [optimizer for _, optimizer in host_algo.named_optimizers(algo)]
    return [_averaging[optimizer] for optimizer in optimizers if optimizer in _averaging]


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
    trained = host_algo.held_by(optimizer) if parameters is None else parameters
    return [p for p in trained if p.requires_grad and id(p) not in covered]
